"""Many streams at once move as each does alone."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.requests import slo_classes

from otel_llm.slo.classes import SloClass
from otel_llm.slo.running import Running
from otel_llm.slo.running_many import UNKNOWN, WIDTH, RunningMany

MS = 1_000_000


def state(running: Running) -> dict[str, object]:
    return {name: getattr(running, name) for name in Running.__slots__ if name not in ("_slo", "first_due_ns")}


@settings(max_examples=300)
@given(st.data())
def test_a_batch_moves_every_stream_as_one_alone(data: st.DataObject) -> None:
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    classes: list[SloClass] = data.draw(st.lists(slo_classes(), min_size=1, max_size=4))
    streams = [chance.choice(classes) for _ in range(chance.randrange(1, 12))]
    commits = [10**18 + chance.randrange(10**9) for _ in streams]
    prompts = [chance.choice([None, 10, 700]) for _ in streams]
    alone = [Running(slo, commit, prompt) for slo, commit, prompt in zip(streams, commits, prompts, strict=True)]
    many = RunningMany(np.zeros((len(streams), WIDTH), dtype=np.int64))
    for row, (running, slo) in enumerate(zip(alone, streams, strict=True)):
        many.store(row, running, slo)
    last = list(commits)
    for _ in range(chance.randrange(1, 5)):
        rows = [row for row in range(len(streams)) if chance.random() < 0.7]
        chance.shuffle(rows)
        if not rows:
            continue
        pieces = []
        for row in rows:
            times = []
            for _ in range(chance.choice([1, 2, 8, 40])):
                last[row] += chance.choice([0, 1, 20 * MS, 50 * MS, 199 * MS, 201 * MS, 3_000 * MS])
                times.append(last[row])
            alone[row].apply(times)
            pieces.append(times)
        offsets = np.cumsum([0, *map(len, pieces)])
        many.apply(np.array(rows), np.array([time for piece in pieces for time in piece]), offsets)
    for row, running in enumerate(alone):
        back = Running(streams[row], commits[row], prompts[row])
        many.load(row, back)
        assert state(back) == state(running)
        assert (many.due_ns[row] == UNKNOWN) == (running.due_ns is None)
        assert many.unbroken(np.array([row]))[0] == running.unbroken
        x = last[row] + chance.randrange(3_000 * MS)
        assert many.idle_ns(np.array([row]), np.array([x]))[0] == running.idle_ns(x)
