"""The last token times of a stream wait in the table until they are needed, and no result depends on that."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from support.chance import chances
from support.core.core_cases import at, commit, seen, segment, take
from support.core.core_fleets import KIND_WORDS, Seen
from support.core.core_spans import needs_kernels
from support.examples import examples

from otel_llm.evaluate.streams.live_stream import LiveStream
from otel_llm.evaluate.streams.stream_table import BUFFER
from otel_llm.slo.classes import KINDS
from otel_llm.slo.token_events import TokenEvents


class Sent:
    """One stream as it was sent: its tokens so far, and the number of its next segment."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seq = 1
        self.tokens: list[tuple[int, int]] = []
        """When each came (unix ns), and its kind; several of an event are as many."""

    def agree(self, stream: LiveStream) -> None:
        """Check what the stream has of it."""
        known = stream.stream
        kinds = bytes(kind for _, kind in self.tokens)
        assert known.tokens == len(self.tokens)
        times, known_kinds = known.events.expanded()
        assert list(times) == [time for time, _ in self.tokens]
        assert (known_kinds or bytes(len(kinds))) == kinds
        read, _ = TokenEvents(known.read_ns, None, known.read_counts).expanded()
        assert list(read) == [time for time, kind in self.tokens if kind in stream.slo.reads]
        assert stream.stream.running.count == len(read)


def of(one: Seen, number: int) -> LiveStream:
    return next(stream for key, stream in one.evaluator.live.items() if int.from_bytes(key[0], "big") == number)


@settings(max_examples=examples(30))
@given(chances())
def test_whoever_asks_and_when_finds_every_token(random: Random) -> None:
    one = seen()
    sent = [Sent(number) for number in range(1, 1 + random.randint(1, 6))]
    take(one, 0, *(commit(request=stream.number) for stream in sent))
    ms = 0.0
    for _ in range(random.randint(1, 12)):
        ms += 250.0
        segments = []
        for stream in random.sample(sent, random.randint(1, len(sent))):
            count = random.choice((0, 1, 8, 8, BUFFER // 2, BUFFER // 2 + 1, BUFFER, BUFFER + 1, 2 * BUFFER))
            word = random.choice(KIND_WORDS) if random.random() < 0.1 else None
            times = [ms - 240.0 + i for i in range(count)]
            several = random.random() < 0.3
            counts = [random.choice((1, 2, 700)) if several else 1 for _ in times]
            first = len(stream.tokens)
            segments.append(segment(stream.seq, first, times, ms, request=stream.number, kind=word, counts=counts))
            token = 0 if word is None else KINDS.index(word)
            for time, number in zip(times, counts, strict=True):
                stream.tokens += [(at(time), token)] * number
            stream.seq += 1
        take(one, ms, *segments)
        for stream in random.sample(sent, random.randint(0, len(sent))):
            stream.agree(of(one, stream.number))
    for stream in sent:
        stream.agree(of(one, stream.number))


@needs_kernels
def test_what_is_held_stays_with_its_stream_when_the_table_grows() -> None:
    one = seen()
    first = Sent(1)
    take(one, 0, commit(request=1))
    take(one, 250, segment(1, 0, [100, 200], 250))
    first.tokens = [(at(100), 0), (at(200), 0)]
    size = one.evaluator.table.size
    take(one, 300, *(commit(300, request=number) for number in range(2, 2 + size)))
    assert one.evaluator.table.size > size
    assert one.evaluator.table.fresh.item(of(one, 1).slot) == 2
    first.agree(of(one, 1))


def test_a_stream_that_gets_the_slot_of_another_has_none_of_its_tokens() -> None:
    one = seen()
    take(one, 0, commit(request=1))
    take(one, 250, segment(1, 0, [100, 200], 250))
    slot = of(one, 1).slot
    one.evaluator.advance(at(200_000))  # lost
    assert not one.evaluator.live
    take(one, 200_001, commit(200_001, request=2))
    assert of(one, 2).slot == slot
    Sent(2).agree(of(one, 2))
    take(one, 200_250, segment(1, 0, [200_100], 200_250, request=2))
    second = Sent(2)
    second.tokens = [(at(200_100), 0)]
    second.agree(of(one, 2))
