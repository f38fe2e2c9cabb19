"""The rows of many streams say what each stream's own judgement says."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chance import chances
from support.examples import examples
from support.slo.requests import slo_classes

from otel_llm.core.stream_columns import RUNNING, RUNNING_END, UNKNOWN, WIDTH
from otel_llm.evaluate.streams.running_many import RunningMany
from otel_llm.slo.classes import SloClass
from otel_llm.slo.live.running import Running

MS = 1_000_000


def state(running: Running) -> dict[str, object]:
    return {name: getattr(running, name) for name in Running.__slots__ if name not in ("_slo", "first_due_ns")}


@settings(max_examples=examples(100))
@given(chances(), st.lists(slo_classes(), min_size=1, max_size=4))
def test_rows_say_what_each_stream_alone_says(chance: Random, classes: list[SloClass]) -> None:
    streams = [chance.choice(classes) for _ in range(chance.randrange(1, 12))]
    commits = [10**18 + chance.randrange(10**9) for _ in streams]
    prompts = [chance.choice([None, 10, 700]) for _ in streams]
    alone = [Running(slo, commit, prompt) for slo, commit, prompt in zip(streams, commits, prompts, strict=True)]
    last = list(commits)
    for row, running in enumerate(alone):
        times = []
        for _ in range(chance.choice([0, 1, 2, 8, 40])):
            last[row] += chance.choice([0, 1, 20 * MS, 50 * MS, 199 * MS, 201 * MS, 3_000 * MS])
            times.append(last[row])
        if times:
            running.apply(times)
    rows = np.full((len(streams), WIDTH), 7, dtype=np.int64)
    many = RunningMany(rows)
    many.store(0, alone[0], streams[0])
    many.store_many(np.arange(1, len(alone)), zip(alone[1:], streams[1:], strict=True))
    assert (rows[:, :RUNNING] == 7).all()
    assert (rows[:, RUNNING_END:] == 7).all()
    for row, running in enumerate(alone):
        back = Running(streams[row], commits[row], prompts[row])
        many.load(row, back)
        assert state(back) == state(running)
        assert (many.due_ns[row] == UNKNOWN) == (running.due_ns is None)
        assert many.unbroken(np.array([row]))[0] == running.unbroken
        x = last[row] + chance.randrange(3_000 * MS)
        assert many.idle_ns(np.array([row]), np.array([x]))[0] == running.idle_ns(x)
        if running.count:
            assert (many.runway_ns(np.array([row]), np.array([x]))[0] < 0) == running.starving(x)
