"""`docs/deployment.md`: commands name what exists, values install the chart, sizes follow from the figures."""

from __future__ import annotations

import re
import shlex
from functools import cache
from math import ceil
from pathlib import Path

import pytest
import yaml
from support.commands import run
from support.deployment.charts import CHART, rendered

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (\S.*)$", TEXT, re.MULTILINE)
PROGRAMS = {
    *("python3", "NUMBA_CPU_NAME=generic", "install", "systemctl", "docker", "openssl", "kubectl", "otel-llm", "helm"),
}
WRITTEN = {"tokens.txt", "values.yaml", "slo.yaml", "mine.yaml", "otel-llm.rules.yml"}
"""Files that the reader writes, or a command before."""

TOKENS_A_SECOND = 50
STREAMS_OF_A_COLLECTOR = 16_000
IDLE_MB, KB_A_STREAM = 240, 4.3
BYTES_A_TOKEN, CLOSED = 34, 4
CHUNKS_OF_A_RELAY = 2_500
ROW = r"^\| ([\d,]+) \| ([\d,]+) \| (\d+) \| (\d+) MB \| ([\d,]+) GB \| ([\d,]+) \|$"


def test_the_commands_are_those_that_these_tests_know() -> None:
    assert len(COMMANDS) > 10
    assert {shlex.split(command)[0] for command in COMMANDS} == PROGRAMS


def test_every_file_that_a_command_names_is_there() -> None:
    for command in COMMANDS:
        for word in shlex.split(command):
            name = word.rpartition("=")[2] if word.startswith(("--from-file", "slo=", "collector.", "prom")) else word
            if name.startswith("collector/"):
                assert (ROOT / name).exists(), command
            elif re.fullmatch(r"[\w.-]+\.(ya?ml|txt)", name):
                assert name in WRITTEN, command


def test_the_unit_says_the_same_commands() -> None:
    unit = (ROOT / "collector" / "systemd" / "otel-llm-collect.service").read_text(encoding="utf-8")
    said = re.findall(r"^#   (.*)$", unit, re.MULTILINE)
    assert said == [command.replace("collector/systemd/", "") for command in COMMANDS[: len(said)]]


@cache
def help_of(*command: str) -> str:
    return run(*command, "--help").stdout


def test_options_of_ours_exist() -> None:
    for command in re.findall(r"`?(otel-llm (?:rules prometheus|collect|audit)\b[^`\n>]*)", TEXT):
        words = shlex.split(command)[1:]
        options = [word.split("=")[0] for word in words if word.startswith("--")]
        shown = help_of(*(words[:2] if words[0] == "rules" else words[:1]))
        assert all(re.search(rf"^ +{option} ", shown, re.MULTILINE) for option in options), command


def test_values_that_a_command_sets_exist() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    named = [path for command in COMMANDS for path in re.findall(r"--set(?:-file)? ([\w.]+)=", command)]
    assert len(named) == 5
    for path in named:
        at = values
        for key in path.split("."):
            assert at == {} or key in at, path
            at = at.get(key, {})


def test_the_values_of_the_page_install_the_chart(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(# values\.yaml\n.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "values.yaml").write_text(text, encoding="utf-8")
    (found,) = rendered([tmp_path / "values.yaml"]).values()
    assert found["lint"] == found["findings"] == []


def test_the_sizes_follow_from_the_measured_figures() -> None:
    """Each constant stands in the page that measured it, and the table is computed of them."""
    sizing = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
    for figure in ("16,000 streams", "240 MB without a stream", "283 MB with 10,000", "1,048 MB with 200,000"):
        assert figure in sizing
    assert "23, 30, 40 for segments of 64, 16, 8 tokens; a quarter" in sizing
    assert "carries **2,500 a second**" in (ROOT / "docs" / "relay.md").read_text(encoding="utf-8")
    assert KB_A_STREAM == (283 - IDLE_MB) / 10
    assert (1_048 - IDLE_MB) / 200 < KB_A_STREAM
    tokens_a_segment = TOKENS_A_SECOND / 4
    assert pytest.approx(40 + (30 - 40) * (tokens_a_segment - 8) / (16 - 8), abs=0.5) == BYTES_A_TOKEN
    rows = re.findall(ROW, TEXT, re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        streams, segments, collectors, memory, journal, relays = (int(cell.replace(",", "")) for cell in row)
        assert segments == streams * 4
        assert collectors == ceil(streams / (STREAMS_OF_A_COLLECTOR / 2))
        assert memory == int(IDLE_MB + KB_A_STREAM * streams / collectors / 1000 + 0.5)
        assert journal == int(streams * TOKENS_A_SECOND * BYTES_A_TOKEN / CLOSED * 86_400 / 1e9 + 0.5)
        assert relays == streams * TOKENS_A_SECOND / CHUNKS_OF_A_RELAY
