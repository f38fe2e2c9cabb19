"""Streams drawn at random in the middle of their lives, and the rows that the evaluator's table holds of them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import cast

import numpy as np
import numpy.typing as npt
from rules.scripted import View, key
from support.core.core_fleets import MS, slo_class

from otel_llm.evaluate.streams.stream_in_flight import StreamInFlight
from otel_llm.evaluate.streams.stream_table import StreamTable
from otel_llm.rules.engine.applicable_rules import identity_of
from otel_llm.rules.engine.prefilter import Prefilter, PrefilterResult
from otel_llm.slo.live.columns import RUNNING_WIDTH
from otel_llm.slo.stream import Stream

COMMIT = 1_790_000_000_000_000_000


def view(random: Random, number: int) -> View:
    """Draw a stream in the middle of its life, of a class of its own."""
    slo = slo_class(random, f"c{number % 2}")
    stream = Stream(slo, COMMIT + random.randrange(10**9), random.choice((None, 5, 50, 500)))
    at_ns = stream.commit_ns
    for _ in range(random.choice((0, 0, 1, 2, 9))):
        times = []
        for _ in range(random.choice((1, 2, 8, 40))):
            at_ns += random.choice((0, 1, 20 * MS, 50 * MS, 199 * MS, 900 * MS))
            times.append(at_ns)
        kind = random.choice((0, 0, 1, 2))
        stream.extend(times, [kind] * len(times))
    return View(
        stream,
        key=key(number),
        slo_class=slo.name,
        model=random.choice(("m", "n")),
        instance=random.choice(("a", "")),
        exact_resume=random.random() < 0.5,
        token_basis=random.choice((None, "exact", "estimated")),
        token_ratio_learned=random.choice((None, False, True)),
        last_byte_ns=random.choice((0, at_ns - 5 * MS, at_ns + 3, at_ns + 200 * MS)),
        watermark_ns=at_ns + random.choice((0, 3, 250 * MS)),
        offset_ns=random.randrange(-(10**9), 10**9),
    )


def drawn(random: Random, number: int) -> tuple[list[View], list[int]]:
    """Draw streams, and an instant of each, on its own axis, that is not before its last token."""
    views = [view(random, at + 1) for at in range(number)]
    later = (0, 1, 30 * MS, 100 * MS, 777 * MS, 3_000 * MS)
    return views, [max(one.stream.last_ns, one.watermark_ns, one.last_byte_ns) + random.choice(later) for one in views]


class Rows:
    """Rows of streams in a table, as the evaluator holds them, and looks at them by a prefilter.

    `more_tokens`: how many have come since the engine looked at them.
    """

    def __init__(self, views: Sequence[View], prefilter: Prefilter, *, more_tokens: int = 0) -> None:
        self.table = table = StreamTable()
        taken = [table.take(cast("StreamInFlight", one), None) for one in (*views, *views)]
        self.slots = np.array(taken[:-1:2][::-1], dtype=np.int64)  # not all, nor in order
        self._prefilter = prefilter
        for slot, one in zip(self.slots.tolist(), views, strict=True):
            stream = one.stream
            table.rows[slot, :RUNNING_WIDTH] = list(stream.running)
            table.offset_ns[slot], table.watermark_ns[slot] = one.offset_ns, one.watermark_ns
            table.tokens[slot] = len(stream.times_ns)
            table.first_ns[slot] = stream.times_ns[0] if stream.times_ns else stream.commit_ns
            table.last_ns[slot] = stream.last_ns
            table.known_tokens[slot] = len(stream.times_ns) - more_tokens
            table.last_byte_ns[slot] = table.known_byte_ns[slot] = one.last_byte_ns
            table.identity[slot] = prefilter.bits(identity_of(one))

    def evaluate(self, x_ns: Sequence[int], states: npt.NDArray[np.int8] | int) -> PrefilterResult:
        """Look at all of them, each at its own instant; `states`: (S, rules), or one for all."""
        of_slots = np.zeros((self.table.size, self._prefilter.count), dtype=np.int8)
        of_slots[self.slots] = states
        at_ns = np.array(x_ns, dtype=np.int64) - self.table.offset_ns[self.slots]
        return self._prefilter.evaluate(self.table.rows, of_slots, self.table.due_ns, self.slots, at_ns)
