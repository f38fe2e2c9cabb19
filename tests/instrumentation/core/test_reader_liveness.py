"""What is known of a stream whose loop and whose own end are seen in any order."""

from __future__ import annotations

import gc
import weakref
from itertools import count

import pytest
from support.instrumentation.fake_environment import FakeEnvironment

from otel_llm.instrumentation.core.reader_liveness import ReaderLiveness


class Thing:
    """Something that can be watched."""

    other: Thing


def test_a_loop_that_went_with_its_stream_was_left_whichever_was_told_first() -> None:
    liveness = ReaderLiveness(count(1).__next__, 0)
    stream, loop = Thing(), Thing()
    seen: list[tuple[bool, int | None]] = []
    # The garbage collector clears all weak references to what it found before it calls the first of their callbacks:
    # this one, the oldest to the stream, comes behind the stream's and before the loop's.
    watch = weakref.ref(stream, lambda _: seen.append((liveness.collected, liveness.left_ns(None))))
    liveness.open(stream, iter(()))
    liveness.enter(loop)
    stream.other, loop.other = loop, stream
    del stream, loop
    gc.collect()
    assert watch() is None
    assert seen == [(True, 2)]
    assert liveness.left_ns(None) == 2


def test_who_reads_on_in_another_way_has_not_left() -> None:
    liveness = ReaderLiveness(count(1).__next__, 0)
    stream, loop = Thing(), Thing()
    liveness.open(stream, iter(()))
    liveness.enter(loop)
    del loop
    assert liveness.left_ns(None) is not None
    assert liveness.left_ns(100) is None
    assert liveness.left_ns(None) is None
    assert not liveness.collected


def test_who_was_seen_while_the_stream_was_being_closed_has_left() -> None:
    class Inner:
        gi_running = False

    liveness = ReaderLiveness(count(1).__next__, 0)
    stream, loop, inner = Thing(), Thing(), Inner()
    liveness.open(stream, inner)
    liveness.enter(loop)
    del loop
    inner.gi_running = True
    assert liveness.left_ns(None) is None
    inner.gi_running = False
    assert liveness.left_ns(None) is not None


def test_a_stream_that_nobody_looped_over_was_not_left() -> None:
    liveness = ReaderLiveness(count(1).__next__, 0)
    stream = Thing()
    liveness.open(stream, iter(()))
    del stream
    assert liveness.collected
    assert liveness.left_ns(None) is None


def test_a_stream_that_goes_while_it_is_looked_at_was_left_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeEnvironment()
    recording = host.record()
    read = [Thing(), Thing()]
    recording.opened(read[0], iter(()))
    recording.entered(read[1])
    recording.append(host.now_ns)
    looked = ReaderLiveness.left_ns

    def left_ns(self: ReaderLiveness, newest_ns: int | None) -> int | None:
        left_ns = looked(self, newest_ns)
        read.clear()  # as if by another thread, between what one look asks first and what it asks next
        return left_ns

    monkeypatch.setattr(ReaderLiveness, "left_ns", left_ns)
    for ms in (250, 500, 750):
        host.at(ms)
        host.step()
    assert [outcome for *_, outcome in host.told() if outcome] == ["cancelled"]
