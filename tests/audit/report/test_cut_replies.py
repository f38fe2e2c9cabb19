"""The report's section on replies that were cut: it says how many, by class, and is left out if none was."""

from __future__ import annotations

from pathlib import Path

import pytest

import otel_llm.audit
from otel_llm.audit.report.report import render


def recording(tmp_path: Path, *reasons: str) -> Path:
    path = tmp_path / "requests.csv"
    rows = [f"r{number},0.5,{reason}" for number, reason in enumerate(reasons)]
    path.write_text("\n".join(["request,t_seconds,finish_reason", *rows]) + "\n", encoding="utf-8")
    return path


def test_the_report_says_how_many_replies_were_cut(tmp_path: Path) -> None:
    audit = otel_llm.audit.load(recording(tmp_path, "stop", "max_tokens", "length", "SAFETY", ""))
    found = audit.requests["finish_reason"]
    assert sorted(found.dropna()) == ["content_filter", "length", "length", "stop"]
    assert found.isna().sum() == 1
    assert set(audit.requests["outcome"]) == {"completed"}
    page = render(audit)
    section = page[page.index("<section id='cut'>") :]
    section = section[: section.index("</section>")]
    assert "Replies that were cut off" in section
    cells = [cell.split("<")[0] for cell in section.split("<td")[1:]]
    assert [cell.rpartition(">")[2] for cell in cells][-4:] == ["5", "2", "1", "60 %"]


@pytest.mark.parametrize("reasons", [("stop",), ("",)])
def test_without_such_replies_there_is_no_section(tmp_path: Path, reasons: tuple[str, ...]) -> None:
    assert "Replies that were cut off" not in render(otel_llm.audit.load(recording(tmp_path, *reasons)))
