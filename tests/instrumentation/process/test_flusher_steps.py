"""When streams are cut: every 250 ms, when silent, at once after a silence, when left; the test turns the clock."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.instrumentation.fake_environment import COMMIT_NS, MS, FakeEnvironment
from support.patience import WAIT_S

from otel_llm.export import threads
from otel_llm.instrumentation.core.reading import recorded
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.process.flusher import Flusher
from otel_llm.instrumentation.segments.choices import Choices


class Words:
    """A stream that has what a test puts in it."""

    def __init__(self) -> None:
        self.ready: list[object] = []

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        return self.ready.pop(0)


class Read:
    """A recorded stream and its one reader."""

    def __init__(self, host: FakeEnvironment) -> None:
        self.host = host
        self.recording = host.record()
        self.words = Words()
        self.reader = recorded(self.words, self.recording)
        self.recording.opened(self.words, self.words)

    def word(self, ms: float, word: object = "a") -> None:
        self.host.at(ms)
        self.words.ready.append(word)
        next(self.reader)


def test_every_flush_tells_what_arrived_since_the_last() -> None:
    host = FakeEnvironment()
    read = Read(host)
    host.step()
    for ms in (100, 200, 300):
        read.word(ms)
        host.step()
    host.at(500)
    host.step()
    assert host.told() == [(0, 0, [], None), (0, 300, [100, 200, 300], None)]
    host.at(550)
    assert host.step() == 800
    assert host.told()[2:] == [(300, 550, [], None)]


def test_a_silent_stream_is_looked_at_when_it_must_say_so() -> None:
    host = FakeEnvironment()
    read = Read(host)
    looks = []
    due: int | None = 0
    while due is not None and due < 3_000:
        looks.append(due)
        host.at(due)
        due = host.step()
    ends = [end for _, end, _, _ in host.told()[1:]]
    assert ends == [250, 500, 1_500, 2_500]
    assert len(looks) < 20  # it is not watched all the time
    assert not read.recording.done


def test_a_stream_that_writes_is_cut_once_an_interval() -> None:
    """Its last token is always a little older than the last cut: it must not be taken for silent just before it."""
    host = FakeEnvironment()
    read = Read(host)
    due = host.step()
    for ms in range(7, 2_000, 7):
        while due is not None and due < ms:
            host.at(due)
            due = host.step()
        read.word(ms)
    told = [len(times) for _, _, times, _ in host.told()[1:]]
    assert set(told) == {35, 36}
    assert len(told) == 7


def test_after_an_empty_segment_the_next_token_is_told_at_once() -> None:
    host = FakeEnvironment()
    read = Read(host)
    host.at(250)
    host.step()
    read.word(260, None)  # framing: nothing to tell
    assert not host.urged
    read.word(270)
    assert host.urged == [read.recording]
    host.step()
    assert host.told()[2:] == [(250, 270, [270], None)]
    assert host.urgent == 1
    read.word(275)
    assert not host.urged  # the one after it waits for the next flush
    host.step()
    assert len(host.told()) == 3


def test_a_token_that_came_while_the_silence_was_told_is_told_at_once() -> None:
    host = FakeEnvironment()
    read = Read(host)
    append = read.recording.append  # a reader that was interrupted before it could append
    host.at(250)
    host.step()
    append(COMMIT_NS + 250 * MS)
    host.at(500)
    host.step()
    assert host.told()[2:] == [(250, 500, [250], None)]


def test_a_token_that_came_before_the_silence_was_told_and_after_it_was_seen_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = FakeEnvironment()
    read = Read(host)
    append = read.recording.append

    def quiet(self: Choices) -> bool:
        append(COMMIT_NS + 249 * MS)  # at the worst of moments
        return True

    monkeypatch.setattr(Choices, "quiet", property(quiet))
    host.at(250)
    host.step()
    monkeypatch.undo()
    assert host.urged == [read.recording]


def test_an_append_costs_no_lock_and_no_call() -> None:
    recording = FakeEnvironment().record()
    assert type(recording.append).__name__ == "builtin_function_or_method"


def test_a_loop_that_was_left_ends_the_stream_one_flush_later() -> None:
    host = FakeEnvironment()
    read = Read(host)
    read.word(10)
    read.recording.entered(loop := recorded(read.words, read.recording))
    host.at(20)
    del loop
    host.at(100)
    host.step()
    assert host.told() == [(0, 0, [], None)]
    host.at(270)
    host.step()
    assert host.told()[1:] == [(0, 20, [10], "cancelled")]
    assert host.step() is None


def test_a_loop_that_is_entered_again_goes_on() -> None:
    host = FakeEnvironment()
    read = Read(host)
    read.recording.entered(loop := recorded(read.words, read.recording))
    host.at(20)
    del loop
    read.recording.entered(again := recorded(read.words, read.recording))
    host.at(270)
    host.step()
    assert host.told()[1:] == [(0, 270, [], None)]
    again.close()


def test_a_stream_that_is_read_by_hand_after_its_loop_goes_on() -> None:
    host = FakeEnvironment()
    read = Read(host)
    read.recording.entered(loop := recorded(read.words, read.recording))
    host.at(20)
    del loop
    read.word(30)
    host.at(280)
    host.step()
    assert host.told()[1:] == [(0, 280, [30], None)]


def test_a_stream_that_is_collected_ends_at_its_last_read() -> None:
    host = FakeEnvironment()
    read = Read(host)
    read.word(40)
    read.word(90, None)  # framing is read too
    read.reader.close()
    del read.words, read.reader
    gc.collect()
    host.at(200)
    host.step()
    assert host.told()[1:] == [(0, 90, [40], "abandoned")]


def test_it_ends_no_earlier_than_what_was_said_of_it() -> None:
    host = FakeEnvironment()
    read = Read(host)
    read.word(40)
    host.at(250)
    host.step()
    read.reader.close()
    del read.words, read.reader
    gc.collect()
    host.at(300)
    host.step()
    assert host.told()[2:] == [(250, 250, [], "abandoned")]


def test_a_process_that_ends_ends_its_streams() -> None:
    host = FakeEnvironment()
    read = Read(host)
    read.word(40)
    host.at(100)
    assert host.flusher.step(host.now_ns, exiting=True) is None
    assert host.told()[1:] == [(0, 40, [40], "abandoned")]


def test_the_request_span_ends_with_the_stream_once() -> None:
    host = FakeEnvironment()
    read = Read(host)
    read.word(40)
    host.at(50)
    read.recording.exhausted()
    read.recording.closed()
    read.recording.failed(ValueError())
    host.step()
    assert [outcome for _, _, _, outcome in host.told()] == [None, "completed"]
    assert len(host.requests()) == 1


def test_many_streams_cost_few_looks() -> None:
    host = FakeEnvironment()
    reads = []
    for ms in range(0, 250, 5):  # fifty, each silent since another instant
        host.at(ms)
        reads.append(Read(host))
    looks = 0
    due: int | None = 250
    while due is not None and due < 1_250:
        host.at(due)
        due = host.step()
        looks += 1
    assert looks <= 45
    assert len(host.told()) >= 50 * 3
    assert host.flusher.in_flight == len(reads)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("word"), st.integers(0, 400)),
        st.tuples(st.just("framing"), st.integers(0, 400)),
        st.tuples(st.just("look"), st.integers(0, 400)),
        st.tuples(st.just("late"), st.integers(0, 400)),
    ),
    max_size=60,
)


@given(script=steps)
def test_whatever_arrives_whenever_one_looks_nothing_is_lost_or_told_twice(script: list[tuple[str, int]]) -> None:
    host = FakeEnvironment()
    read = Read(host)
    now = 0
    words = 0
    newest_ns = COMMIT_NS
    for what, after in script:
        now += after
        host.at(now)
        if what == "look":
            host.step()
        elif what == "late":
            newest_ns = max(newest_ns, host.now_ns - 3 * MS)  # interrupted between its clock and its append
            read.recording.append(newest_ns)
            words += 1
        else:
            read.word(now, "a" if what == "word" else None)
            newest_ns = host.now_ns
            words += what == "word"
    host.at(now + 7)
    read.recording.exhausted()
    told = host.told()
    assert sum(len(times) for _, _, times, _ in told) == words
    assert all(before[1] == after[0] for before, after in itertools.pairwise(told))
    assert all(start <= time <= end for start, end, times, _ in told for time in times)
    written = [time for _, _, times, _ in told for time in times]
    assert written == sorted(written)
    assert host.bugs == []


def test_an_urgent_recording_that_is_done_is_no_trouble() -> None:
    host = FakeEnvironment()
    recording: Recording = host.record()
    host.urge(recording)
    recording.exhausted()
    assert host.step() is None
    assert host.bugs == []


def test_the_end_of_a_stream_leaves_before_its_turn() -> None:
    """A server may end its process right after its last stream."""
    host = FakeEnvironment()
    read = Read(host)
    read.word(100)
    before = host.urgent
    read.recording.exhausted()
    assert host.urgent == before + 1


def running(clock_ns: Callable[[], int] = time.monotonic_ns) -> tuple[FakeEnvironment, Flusher]:
    """Return a host whose flusher has its thread."""
    host = FakeEnvironment()
    host.now_ns = clock_ns()
    host.flusher = Flusher(clock_ns)
    return host, host.flusher


def test_settling_has_the_thread_end_what_was_left() -> None:
    host, flusher = running()
    assert flusher.complete(20.0)  # without a thread there is nothing to wait for
    read = Read(host)
    assert flusher.complete(20.0)
    assert not read.recording.done
    assert flusher.complete(20.0, exiting=True)
    assert read.recording.done
    assert host.told()[-1][3] == "abandoned"
    flusher.stop(WAIT_S)


def test_what_is_open_when_a_grace_ends_is_ended() -> None:
    host, flusher = running()
    read = Read(host)
    flusher.leave_at(host.clock_ns() + 3600 * 1000 * MS)
    assert flusher.complete(20.0)
    assert not read.recording.done
    flusher.leave_at(host.clock_ns())
    assert threads.wait_until(lambda: read.recording.done, 20.0)
    flusher.stop(WAIT_S)


def test_a_thread_that_cannot_start_costs_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    host, flusher = running()

    def none_left(run: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threads, "start", none_left)
        lost = host.record()
    assert (lost.done, flusher.in_flight, len(host.bugs)) == (True, 0, 1)
    read = Read(host)
    assert flusher.complete(20.0, exiting=True)
    assert read.recording.done
    flusher.stop(WAIT_S)
