"""The rows of many streams say what each stream's own judgement says."""

from __future__ import annotations

from array import array
from random import Random
from typing import cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chance import chances
from support.examples import examples
from support.slo.judgement import Judgement
from support.slo.requests import slo_classes

from otel_llm.evaluate.streams.stream_in_flight import StreamInFlight
from otel_llm.evaluate.streams.stream_table import StreamTable
from otel_llm.slo.classes import SloClass
from otel_llm.slo.live.running import idle_ns

MS = 1_000_000


@settings(max_examples=examples(100))
@given(chances(), st.lists(slo_classes(), min_size=1, max_size=4))
def test_rows_say_what_each_stream_alone_says(chance: Random, classes: list[SloClass]) -> None:
    streams = [chance.choice(classes) for _ in range(chance.randrange(1, 12))]
    commits = [10**18 + chance.randrange(10**9) for _ in streams]
    prompts = [chance.choice([None, 10, 700]) for _ in streams]
    alone = [Judgement(slo, commit, prompt) for slo, commit, prompt in zip(streams, commits, prompts, strict=True)]
    last = list(commits)
    for row, judgement in enumerate(alone):
        times = []
        for _ in range(chance.choice([0, 1, 2, 8, 40])):
            last[row] += chance.choice([0, 1, 20 * MS, 50 * MS, 199 * MS, 201 * MS, 3_000 * MS])
            times.append(last[row])
        if times:
            judgement.apply(times)
    table = StreamTable()
    for running, last_ns in zip((one.now for one in alone), last, strict=True):
        slot = table.take(cast("StreamInFlight", None), None)
        table.set_running(slot, array("q", running))
        assert table.running_of(slot) == running
        slots, x_ns = np.array([slot]), last_ns + chance.randrange(3_000 * MS)
        assert table.unbroken(slots)[0] == running.unbroken
        assert table.idle_ns(slots, np.array([x_ns]))[0] == idle_ns(running, x_ns)
        if running.count:
            assert (table.runway_at(slots, np.array([x_ns]))[0] < 0) == running.starving(x_ns)
