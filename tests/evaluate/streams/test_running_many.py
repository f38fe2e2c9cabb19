"""The rows of many streams say what each stream's own judgement says."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chance import chances
from support.examples import examples
from support.slo.judgement import Judgement
from support.slo.requests import slo_classes

from otel_llm.core.stream_columns import WIDTH
from otel_llm.evaluate.streams.running_many import RunningMany
from otel_llm.slo.classes import SloClass
from otel_llm.slo.live.columns import RUNNING_WIDTH

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
    rows = np.full((len(streams), WIDTH), 7, dtype=np.int64)
    rows[:, :RUNNING_WIDTH] = [list(one.now) for one in alone]
    many = RunningMany(rows)
    for row, running in enumerate(one.now for one in alone):
        assert many.due_ns[row] == running.due_ns
        assert many.unbroken(np.array([row]))[0] == running.unbroken
        x = last[row] + chance.randrange(3_000 * MS)
        assert many.idle_ns(np.array([row]), np.array([x]))[0] == running.idle_ns(x)
        if running.count:
            assert (many.runway_ns(np.array([row]), np.array([x]))[0] < 0) == running.starving(x)
