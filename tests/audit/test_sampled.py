"""A report that keeps a sample of its requests: every way of showing its figures says so, and none has rates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.formats.bench_files import NS, Chunk, Requested, guidellm_entry

from otel_llm.audit import Audit, load
from otel_llm.audit.compare.comparison import compare
from otel_llm.cli.commands.audit_command import audit

MS = 1_000_000
CLAUSE = "the figures are those of a sample, 40 of 200 requests, without rates"


def report(models: int = 1) -> bytes:
    """40 of 200 requests, of which 10 failed: 30 of the sample's 40 completed."""
    requested = [Requested(at * NS, (Chunk((200 + at) * MS), Chunk(900 * MS))) for at in range(40)]
    entries = [
        guidellm_entry(replace(one, model=f"m{number % models}"), number + 1) for number, one in enumerate(requested)
    ]
    totals = {"successful": 190, "errored": 10, "incomplete": 0, "total": 200}
    benchmark = {
        "config": {"strategy": {"type_": "constant", "rate": 1.0}},
        "metrics": {"request_totals": totals},
        "requests": {"successful": entries[:30], "errored": entries[30:], "incomplete": []},
    }
    for entry in entries[30:]:
        entry["info"]["status"] = "errored"
    return json.dumps({"metadata": {"guidellm_version": "0.8.1"}, "benchmarks": [benchmark]}).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "report.json").write_bytes(report())
    return tmp_path / "report.json"


def printed(*arguments: str | Path) -> str:
    found = CliRunner().invoke(audit, [str(one) for one in arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return " ".join(found.stdout.split())


def rates(found: Audit) -> dict[str, float | None]:
    figures = found.summary()["classes"]["chat"]["client"]
    return {name: value for name, value in figures.items() if name.endswith(("_tok_s", "_req_s"))}


def test_the_table_of_a_sample_says_so_first_and_has_no_rates(path: Path) -> None:
    assert set(rates(load(path)).values()) == {None}
    reported = printed(path)
    assert reported.index(CLAUSE[1:]) < reported.index("What the readers felt")
    assert f"report.json: {CLAUSE}" in printed("--runs", path)


def test_a_comparison_with_a_sample_has_the_share_of_the_totals_and_no_rates(path: Path) -> None:
    found = compare(load(path), load(path))
    changes = {one.figure: one for one in found.changes}
    assert found.notes == (f"old: {CLAUSE}", f"new: {CLAUSE}")
    assert (changes["requests"].old, changes["undetermined"].old) == (200, 200)
    aborted = changes["aborted_share"]
    assert (aborted.old, aborted.verdict, aborted.why) == (
        0.05,
        "cannot say",
        "not sampled: it is of the tool's totals",
    )
    assert changes["ttft_p50_s"].verdict == "not shown"
    assert {changes[name].old for name in rates(load(path))} == {None}
    assert f"old: {CLAUSE}" in printed(path, "--baseline", path)


def test_tables_by_model_of_a_sample_say_so_and_have_no_share_of_failures(path: Path) -> None:
    path.write_bytes(report(models=2))
    reported = printed(path)
    assert CLAUSE in reported.split("By model")[1]
    found = compare(load(path), load(path), by=["model"])
    assert {one.old for one in found.changes if one.figure == "aborted_share"} == {None}


def test_the_report_of_a_sample_says_why_a_chart_is_missing(path: Path) -> None:
    page = path.with_suffix(".html")
    printed(path, "--html", page, "--baseline", path)
    text = page.read_text("utf-8")
    head, rest = text.split("<nav", 1)
    assert f"<p class='lead'>T{CLAUSE[1:]}.</p>" in head
    for section in ("time", "load", "starving"):
        body = rest.split(f"<section id='{section}'>")[1].split("</section>")[0]
        assert "Not drawn: the requests are a sample, which says nothing over time or of load." in body
    assert "None is shown: no request could be judged." in rest
    assert f"Old: {CLAUSE}" in rest


def test_the_report_of_requests_without_token_times_says_why_a_chart_is_missing(path: Path) -> None:
    whole = json.loads(report())
    del whole["benchmarks"][0]["metrics"]
    path.write_text(json.dumps(whole))
    load(path).write_html(path.with_suffix(".html"))
    text = path.with_suffix(".html").read_text("utf-8")
    assert text.count("<p>Not drawn: no request could be judged.</p>") == 3
    assert "No reader waited, and no token deadline was missed" not in text
