"""Windows suit the recording: a run of half a minute has dozens, a long one has windows of 10 s."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.otlp import T0_NS, export, stream_spans
from support.recordings import journal

import otel_llm.audit
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.audit.kernel.window_length import FEWEST, LENGTHS_NS, adapted
from otel_llm.audit.kernel.window_totals import Windows, window_partials
from otel_llm.audit.load import LATENESS_NS
from otel_llm.rules.files.slo_file import load_slo

S = 10**9


@pytest.mark.parametrize(
    ("span_s", "length_s"),
    [(0, 0.25), (3, 0.25), (19, 0.25), (20, 0.5), (39, 0.5), (40, 1), (200, 5), (400, 10), (86_400, 10)],
)
def test_the_length_is_the_greatest_with_enough_windows(span_s: int, length_s: float) -> None:
    assert adapted(span_s * S) / S == length_s


def test_each_length_is_a_multiple_of_those_before_it() -> None:
    assert all(longer % length == 0 for length in LENGTHS_NS for longer in LENGTHS_NS if longer > length)


def recording(folder: Path, span_s: int) -> Path:
    """Write a journal of 60 requests that wait, over `span_s`."""
    path = folder / "a.otlp"
    every_ns = span_s * S // 60
    messages = []
    for number in range(60):
        start_ns = T0_NS + number * every_ns
        tokens = [start_ns + at * S for at in (1, 2, 5)]
        messages.append(export(*stream_spans(tokens, request=number + 1, commit_ns=start_ns, end_ns=tokens[-1])))
    path.write_bytes(journal(messages))
    return path


def test_a_short_run_has_short_windows(tmp_path: Path) -> None:
    path = recording(tmp_path, 24)
    found = otel_llm.audit.load(path)
    assert found.window_ns == S // 2
    assert len({row["window_start_unix_nano"] for row in found.window_rows}) >= FEWEST
    assert found.window_rows == otel_llm.audit.load(path, window="500ms").window_rows


def test_windows_that_were_charged_shorter_add_up_to_those_of_the_whole_length(tmp_path: Path) -> None:
    path = recording(tmp_path, 600)
    classes = load_slo()
    charged = Windows()
    for batch in otel_llm.audit.load_streams(path):
        charged.add(window_partials(batch, judge_batch(batch, classes), classes, S // 2, LATENESS_NS))
    narrow = charged.rows(S // 2)
    charged.widen(10 * S)

    assert charged.rows(10 * S) == otel_llm.audit.load(path, window="10s").window_rows
    assert sum(float(row["idle_s_sum"] or 0) for row in narrow) > 0


def test_a_long_recording_ends_with_windows_of_ten_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recording(tmp_path, 600)
    monkeypatch.setattr(sys.modules["otel_llm.audit.load"], "begun", lambda batches, _: (S // 2, iter(batches)))
    found = otel_llm.audit.load(path)
    assert found.window_ns == 10 * S
    assert found.window_rows == otel_llm.audit.load(path, window="10s").window_rows
