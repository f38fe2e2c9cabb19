"""Every class as a tier, and the figures by model and instance: counted again by another way."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from support.audit.judged import judged
from support.otlp import IDENTITY, T0_NS, export, stream_spans
from support.recordings import write_format

import otel_llm.audit
from otel_llm import semconv
from otel_llm.audit.compare import by_group
from otel_llm.audit.compare.tiers import COLUMNS, GROUP, Met, Tiers, tiers
from otel_llm.cli.output import comparison_view
from otel_llm.rules.files.slo_file import load_slo

SLO = """
version: 1
default: loose
classes:
  strict: {deadline: {policy: dslo, ttft: 1s, tpot: 10ms}}
  middle: {deadline: {policy: dslo, ttft: 1s, tpot: 100ms}}
  loose: {deadline: {policy: dslo, ttft: 2s, tpot: 1s}}
"""


@pytest.fixture
def recording(tmp_path: Path) -> tuple[Path, Path]:
    """Requests of three classes and two models whose tokens come 5, 50, 500 ms or 5 s apart, and one without tokens."""
    messages = []
    for number in range(1, 41):
        gap_ns = 5_000_000 * 10 ** (number % 4)
        reported = {
            **IDENTITY,
            semconv.SLO_CLASS: ("strict", "middle", "loose")[number % 3],
            semconv.GEN_AI_REQUEST_MODEL: "ab"[number % 2],
        }
        tokens = [T0_NS + 900_000_000 + at * gap_ns for at in range(5)] if number < 40 else []
        end = tokens[-1] if tokens else T0_NS + 1
        messages.append(export(*stream_spans(tokens, request=number, end_ns=end, identity=reported)))
    slo = tmp_path / "slo.yaml"
    slo.write_text(SLO)
    return write_format(tmp_path, "journal.otlp", messages), slo


def test_a_tier_is_the_audit_under_that_class(recording: tuple[Path, Path]) -> None:
    path, slo = recording
    classes = load_slo(slo)
    found = tiers(otel_llm.audit.load_streams(path), classes)
    own = otel_llm.audit.load(path, slo=classes).rows

    assert found.names == ("strict", "middle", "loose")
    for name in found.names:
        rows = otel_llm.audit.load(path, slo=classes, class_name=name).rows
        wanted: dict[tuple[str | None, ...], Met] = {}
        for row, mine in zip(rows, own, strict=True):
            key = tuple(None if mine[part] is None else str(mine[part]) for part in GROUP)
            one = Met(row["met"] is True, row["met"] is False, row["met"] is None)
            wanted[key] = wanted.get(key, Met()) + one
        assert {key: counts[name] for key, counts in found.counts.items()} == wanted


def test_a_looser_tier_is_never_missed_more_often(recording: tuple[Path, Path]) -> None:
    found = tiers(otel_llm.audit.load_streams(recording[0]), load_slo(recording[1]))
    counts = found.by()[()]

    assert counts["strict"].true < counts["middle"].true < counts["loose"].true
    assert counts["strict"].requests == counts["loose"].requests == 40
    assert counts["strict"].unknown == 1
    # Gaps of 5 ms keep every tier, of 50 ms the middle one, of 500 ms the loose one, of 5 s none.
    assert [counts[name].true for name in found.names] == [9, 19, 29]


def test_own_is_the_attainment_of_the_summary(recording: tuple[Path, Path]) -> None:
    audit = otel_llm.audit.load(recording[0], slo=recording[1])
    found = tiers(otel_llm.audit.load_streams(recording[0]), audit.slo)

    for (name, place), met in found.own("slo_class", "measured_at").items():
        assert name is not None
        assert place is not None
        figures = audit.summary()["classes"][name][place]
        assert (met.requests, met.attainment, met.unknown) == (
            figures["requests"],
            figures["attainment"],
            figures["undetermined"],
        )


def test_the_frame_and_the_object_hold_the_same(recording: tuple[Path, Path]) -> None:
    found = tiers(otel_llm.audit.load_streams(recording[0]), load_slo(recording[1]))
    frame = found.frame
    summary = found.summary()

    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == 3 * len(found.counts)
    strict = frame[frame["tier"] == "strict"]
    assert int(strict["met_true"].sum()) == 9
    assert sum(one["tiers"]["strict"]["met_true"] for one in summary["by_model"]) == 9
    assert [one["slo_class"] for one in summary["by_class"]] == ["strict", "middle", "loose"]


def shown(*things: object) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as capture:
        for thing in things:
            console.print(thing)
    return capture.get()


def test_the_terminal_shows_tiers_side_by_side(recording: tuple[Path, Path]) -> None:
    found = tiers(otel_llm.audit.load_streams(recording[0]), load_slo(recording[1]))
    text = shown(
        comparison_view.tiers_table(found, "slo_class"), comparison_view.tiers_table(found, "model", "slo_class")
    )

    (line,) = (one.split() for one in text.splitlines() if " all " in one and text.index(one) < text.index("by model"))
    assert line[:3] == ["client", "all", "40"]
    assert line[5:] == ["23.08", "%", "48.72", "%", "74.36", "%"]
    assert "Attainment by tier, by model" in text


def test_nothing_recorded_is_no_tier() -> None:
    found = tiers([], load_slo())
    assert found == Tiers(load_slo().names, {})
    assert found.frame.empty


def test_figures_by_model_are_those_of_their_requests_alone() -> None:
    table = judged(
        8,
        model=["a", "b"] * 4,
        idle_s=[1.0, 0.0, 2.0, 0.0, 3.0, 0.5, None, 0.0],
        met=[True, True, False, True, False, True, None, None],
        benefit=[90.0, 100.0] * 3 + [None, None],
    )
    rows = by_group.split(table, load_slo(), "model")

    assert [row["model"] for row in rows] == ["a", "b"]  # the longest waits first
    assert [row["requests"] for row in rows] == [4, 4]
    assert [row["attainment"] for row in rows] == [1 / 3, 1.0]
    assert [row["idle_p99_s"] for row in rows] == [3.0, 0.5]
    assert [row["smooth_goodput_tok_s"] for row in rows] == [270 / 8, 300 / 8]


def test_a_hostile_model_name_is_shown_as_text(tmp_path: Path) -> None:
    messages = [
        export(*stream_spans([T0_NS + 10**9], request=number, end_ns=T0_NS + 10**9, identity=reported))
        for number, reported in enumerate(
            ({**IDENTITY, semconv.GEN_AI_REQUEST_MODEL: name} for name in ("[red]x[/red]\x1b[2J", "plain")), start=1
        )
    ]
    audit = otel_llm.audit.load(write_format(tmp_path, "journal.otlp", messages))
    text = shown(*by_group.tables(audit))

    assert "By model, longest waits first" in text
    assert "[red]x[/red]\\u{1b}[2J" in text
    assert "By instance" not in text
