"""The runner of the matrix: what it calls a fault, what it reads from spans, what it writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.wires.server import Received

from compat import report
from compat.environments import Environment
from compat.matrix import ENVIRONMENTS, MATRIX, Case
from compat.runner import OUTCOMES, Runner, Stream, Verdict, judge, streams_of
from otel_llm import semconv

TRACE, SPAN = b"\x01" * 16, b"\x02" * 8
GOT = {"got": ["w0 "], "returned": "None", "error": None}


class Here(Environment):
    """The environment of the tests themselves."""

    @property
    def python(self) -> Path:
        return Path(sys.executable)


@dataclass(frozen=True)
class Scripted(Case):
    """A case whose script a test wrote."""

    own: Path = field(default_factory=Path)

    @property
    def path(self) -> Path:
        return self.own


HERE = Here("here", ())


@pytest.fixture
def runner() -> Iterator[Runner]:
    with Runner() as running:
        yield running


def _segment(*counts: int, outcome: str | None = None) -> Span:
    span = Span(name=semconv.SEGMENT_SPAN, trace_id=TRACE, parent_span_id=SPAN)
    for count in counts:
        event = span.events.add(name=semconv.TOKEN_EVENT)
        if count != 1:
            event.attributes.add(key=semconv.TOKEN_COUNT).value.int_value = count
    if outcome is not None:
        span.attributes.add(key=semconv.OUTCOME).value.string_value = outcome
    return span


def _received(sent: int = 1) -> Received:
    headers = {"traceparent": f"00-{TRACE.hex()}-{SPAN.hex()}-01"}
    return Received("POST", "/v1/chat/completions", headers, {}, "openai-chat", stream=True, sent=sent)


def _stream(tokens: int = 1, outcome: str = "completed", spans: int = 1) -> Stream:
    return Stream(TRACE.hex(), SPAN.hex(), tokens, frozenset({outcome}), spans)


def _judged(
    recorded: list[Stream], received: list[Received], own: dict[str, Any] | None = None, variant: str = "complete"
) -> list[str]:
    verdict = Verdict("case", "mode", variant, "instrument", recorded=recorded)
    judge(verdict, GOT, own or GOT, received, OUTCOMES[variant])
    return verdict.faults


def test_segments_of_one_request_are_one_stream() -> None:
    request = Span(name="chat m", trace_id=TRACE, span_id=SPAN)
    [stream] = streams_of([_segment(1, 3), _segment(1, outcome="completed"), request])
    assert stream == _stream(5)


def test_what_is_as_promised_has_no_fault() -> None:
    assert _judged([_stream()], [_received()]) == []
    assert _judged([_stream(20)], [_received(20)], variant="left") == []  # the package read on
    assert _judged([_stream(6, "cancelled")], [_received(8)], variant="left") == []


@pytest.mark.parametrize(
    ("recorded", "received", "own", "fault"),
    [
        ([], [], GOT, "no streamed request"),
        ([], [_received()], GOT, "not recorded"),
        ([_stream()], [_received()], {**GOT, "got": []}, "the caller's got differs"),
        ([_stream()], [_received()], {**GOT, "error": ["ValueError", "x"]}, "the caller's error differs"),
        ([_stream()], [_received(), _received()], GOT, "2 streams, 1 recordings"),
        ([_stream(spans=2)], [_received()], GOT, "more than one request span"),
        ([_stream(2)], [_received(3)], GOT, "tokens [2], sent [3]"),
        ([_stream(outcome="error")], [_received()], GOT, "outcome error"),
    ],
)
def test_what_is_not_as_promised_is_a_fault(
    recorded: list[Stream], received: list[Received], own: dict[str, Any], fault: str
) -> None:
    assert any(fault in one for one in _judged(recorded, received, own))


def test_a_request_that_carries_no_trace_is_a_fault() -> None:
    silent = _received()
    silent.headers.clear()
    assert any("traceparent" in fault for fault in _judged([_stream()], [silent]))


def test_a_caller_who_leaves_is_no_completed_stream() -> None:
    assert _judged([_stream(7)], [_received(9)], variant="left") == ["outcome completed"]


@pytest.mark.parametrize("way", ["instrument", "command"])
def test_a_case_runs_bare_and_recorded(runner: Runner, way: str) -> None:
    [case] = [one for one in MATRIX if one.name == "openai_sdk@sdks"]
    verdicts = list(runner.run(case, HERE, ["sync"], [way]))
    assert [one.variant for one in verdicts] == ["complete", "left", "cut", "error", "status"]
    assert [one.faults for one in verdicts] == [[]] * 5


def test_a_process_that_dies_costs_one_call_and_says_why(runner: Runner, tmp_path: Path) -> None:
    script = tmp_path / "case.py"
    script.write_text(
        "import os, sys\n"
        "def dies(ask):\n    print('the last words', flush=True)\n    os._exit(3)\n"
        "def lives(ask):\n    ask.read(['word'])\n"
    )
    case = Scripted("case", "here", ("nothing",), variants=("complete",), own=script)
    dead, alive = runner.run(case, HERE)
    assert "the last words" in dead.faults[0]
    assert alive.faults == ["no streamed request reached the server: ['word']"]


def test_every_case_has_its_script_its_environment_and_modes() -> None:
    for case in MATRIX:
        assert case.environment in ENVIRONMENTS
        assert case.modes()
        assert {*case.short, *case.reasons} - {"*"} <= set(case.modes())
    assert len({case.name for case in MATRIX}) == len(MATRIX)


def test_the_table_joins_modes_that_behaved_alike(tmp_path: Path) -> None:
    case = Case("any", "sdks", ("pack",), variants=("complete", "left"), reasons={"lines": "a reason"})
    verdicts = [
        Verdict(case.name, mode, variant, "instrument", sent=[1], recorded=recorded, faults=faults)
        for mode, recorded, faults in (
            ("sync", [_stream()], []),
            ("asynchronous", [_stream()], []),
            ("lines", [], ["not recorded"]),
            ("helper", [_stream()], ["outcome a | b"]),
        )
        for variant in case.variants
    ]
    lines = report.lines_of(case, "1.0", verdicts)
    assert [line.cells() for line in lines] == [
        "| pack | 1.0 | sync, asynchronous | once | 2 of 2 |  |",
        "| pack | 1.0 | lines | no | - | a reason |",
        "| pack | 1.0 | helper | once | 0 of 2 | complete, left: outcome a \\| b |",
    ]
    report.write(lines, ["| servers |"], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "- pack 1.0, lines: a reason\n" in text
    assert text.endswith("| servers |\n")


def test_an_environment_is_made_again_when_its_requirements_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compat.environments.FOLDER", tmp_path)
    first, second = Environment("e", ("a",)), Environment("e", ("a", "b"))
    assert not first.ready
    first.folder.mkdir()
    (first.folder / "ready").write_text(first.key)
    assert first.ready
    assert not second.ready
    first.delete()
    assert not first.folder.exists()
