"""What a placement policy without state costs: one file of the product, and a row of its page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from support.scheduling.scenarios import scenario

import otel_llm
from otel_llm.scheduling.placement import POLICIES, POLYSERVE

PRODUCT = Path(otel_llm.__file__).parent
ROOT = Path(__file__).parents[2]
NAME = "fewest_prompts"
USE = """
import json, sys
from pathlib import Path
from click.testing import CliRunner
from otel_llm.cli.main import main
from otel_llm.relay.settings import load_settings

name, relay, simulated = sys.argv[1:]
ran = CliRunner().invoke(main, ["simulate", simulated, "--set", f"policy.placement={name}", "--format", "json"])
helped = CliRunner().invoke(main, ["relay", "--help"]).output
rows = json.loads(ran.stdout)["runs"] if ran.exit_code == 0 else ran.output
print(json.dumps([load_settings(Path(relay), ["http://h:1"]).placement, name in helped, rows]))
"""


def copy_with(entry: str, folder: Path) -> None:
    """Make a copy of the product whose table of policies has one more entry."""
    for source, target in ((PRODUCT, folder / "otel_llm"), (PRODUCT / "scheduling", folder / "otel_llm/scheduling")):
        target.mkdir()
        for child in source.iterdir():
            if child.name not in ("scheduling", "placement.py"):
                (target / child.name).symlink_to(child)
    text = (PRODUCT / "scheduling" / "placement.py").read_text(encoding="utf-8")
    end = '}\n"""Policies by name'
    assert text.count(end) == 1
    (folder / "otel_llm" / "scheduling" / "placement.py").write_text(text.replace(end, entry + end), encoding="utf-8")


def test_the_example_of_the_guide_is_all_that_a_policy_needs(tmp_path: Path) -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (entry,) = re.findall(r"```python\n(.*?)```", guide.split("## A placement policy")[1].split("\n## ")[0], re.DOTALL)
    copy_with(entry, tmp_path)
    relay = tmp_path / "relay.yaml"
    relay.write_text(f"version: 1\nplacement: {NAME}\n")
    command = [sys.executable, "-c", USE, NAME, str(relay), str(scenario(tmp_path))]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    placement, is_in_help, rows = json.loads(ran.stdout)
    assert (placement, is_in_help) == (NAME, True)
    assert [row["requests"] for row in rows] == [50], rows


def test_one_file_of_the_product_names_a_policy() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in PRODUCT.rglob("*.py")}
    for name in ("round_robin", "power_of_two", "lmetric"):
        naming = [path for path, text in texts.items() if f'"{name}"' in text]
        assert naming == [PRODUCT / "scheduling" / "placement.py"], name


def test_the_page_has_a_row_for_every_policy() -> None:
    page = (ROOT / "docs" / "relay.md").read_text(encoding="utf-8")
    section = page.split("\n## Placement\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == {*POLICIES, POLYSERVE}
