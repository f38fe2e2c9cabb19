"""The committed figures of the paper are what the code draws today, and say what the paper says."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.vectors import vector

import otel_llm.audit
from otel_llm.audit import Audit

FOLDER = Path(__file__).parents[2] / "examples" / "paper-figures"
PICTURES = ("figure-1.png", "figure-2.png", "held-back.png")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything drawn again, without a browser: its pictures depend on the fonts of the machine."""
    folder = tmp_path_factory.mktemp("figures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "which", lambda _: None)
        runpy.run_path(str(FOLDER / "draw.py"))["draw"](folder)
    return folder


@pytest.fixture(scope="module")
def audited() -> Audit:
    return otel_llm.audit.load(FOLDER / "recorded.jsonl", slo=FOLDER / "slo.yaml")


def test_the_telemetry_is_the_committed_one(drawn: Path) -> None:
    assert (drawn / "recorded.jsonl").read_text("utf-8") == (FOLDER / "recorded.jsonl").read_text("utf-8")


def test_the_page_is_the_committed_one(drawn: Path) -> None:
    ours, committed = ((folder / "figures.html").read_text("utf-8") for folder in (drawn, FOLDER))
    assert ours == committed


def test_the_pictures_are_there() -> None:
    for name in PICTURES:
        data = (FOLDER / name).read_bytes()
        assert data.startswith(b"\x89PNG\r\n"), name
        assert int.from_bytes(data[16:20], "big") == 1000
        assert len(data) > 50_000


def test_the_deliveries_are_the_worked_ones(audited: Audit) -> None:
    names = (
        "figure 1a: ten tokens in the first second, a one-second stall, reader at 4 tok/s",
        "figure 1b: two tokens, then a one-second stall",
        None,
        "output delay trick: as generated",
        "output delay trick: the same tokens held back to a 200 ms cadence",
    )
    for position, (name, row) in enumerate(zip(names, audited.rows, strict=True)):
        if name is not None:
            wanted = vector(name)
            delivery = audited.delivery(position)
            assert delivery is not None
            start = delivery.resolved.commit_ns or 0
            assert [at - start for at in delivery.times_ns] == [at - wanted.commit_ns for at in wanted.tokens_ns]
            for column in ("idle_s", "idle_decode_s", "stalls", "tbt_max_s", "tpot_s", "benefit", "met"):
                assert row[column] == pytest.approx(wanted.expect[column], abs=1e-9), (name, column)


def rows(audit: Audit) -> list[dict[str, Any]]:
    return [dict(row) for row in audit.rows]


def test_figure_1_has_the_same_gap_felt_once(audited: Audit) -> None:
    above, below = rows(audited)[:2]

    assert above["tbt_max_s"] == below["tbt_max_s"] == 1.0
    assert (above["idle_s"], below["idle_s"]) == (0.0, 0.45)


def test_figure_2_feels_the_slow_middle_and_not_the_longest_gap(audited: Audit) -> None:
    row = rows(audited)[2]

    assert row["tbt_max_s"] == 2.9
    assert row["stalls"] == 2  # the wait for the first token, and the one from 10.8 s to 15 s
    assert row["idle_s"] == pytest.approx(4.111, abs=0.001)


def test_holding_back_betters_tbt_and_not_idle(audited: Audit) -> None:
    before, after = rows(audited)[3:]

    assert after["tbt_max_s"] < before["tbt_max_s"] / 7
    assert after["idle_s"] == before["idle_s"] == 0.0
    assert after["ttft_s"] > before["ttft_s"]


def test_the_readme_names_every_file_and_no_other() -> None:
    readme = (FOLDER / "README.md").read_text("utf-8")
    files = {path.name for path in FOLDER.iterdir() if path.is_file()} - {"README.md", "draw.py"}

    assert files == set(re.findall(r"[\w-]+\.(?:png|html|jsonl|yaml)", readme))
    assert json.loads((FOLDER / "recorded.jsonl").read_text("utf-8").splitlines()[0])["resourceSpans"]
