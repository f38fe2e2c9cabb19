"""The fates of a probe's requests, by intended time: a prefix that grows as soon as the next one's fate is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_llm.bench.capacity.objective import MISSED, UNREPORTED, fluid_goal
from otel_llm.slo.batch.many import judge_many
from otel_llm.slo.batch.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from otel_llm.bench.capacity.objective import Clause
    from otel_llm.slo.classes import SloClass

    Floats = NDArray[np.float64]
    Fates = NDArray[np.int8]

CHUNK: Final = 256
"""Requests that are judged at once."""


class StreamSoFar(NamedTuple):
    """A request and its tokens so far, in ns on one clock; `outcome` and `end_ns` are None while it is in flight."""

    slo: SloClass
    commit_ns: int
    tokens_ns: Sequence[int]
    kinds: Sequence[int] | None = None
    end_ns: int | None = None
    outcome: str | None = None
    input_tokens: int | None = None


class FateLog:
    """The prefix of requests whose fates are known.

    A request that ended has its fate. One in flight misses as soon as it would miss even if its next token arrived now;
    it never holds before its end, so that the fast ones do not go ahead of the slow ones.
    """

    def __init__(self, clauses: Sequence[Clause]) -> None:
        self._clauses = clauses
        self._fates: list[Fates] = []
        self._waits: list[Floats] = []
        self._known = 0

    @property
    def fates(self) -> Fates:
        """Return the fates (C, F), one row a clause."""
        return np.concatenate(self._fates, axis=1) if self._fates else np.empty((len(self._clauses), 0), np.int8)

    @property
    def waits(self) -> Floats:
        """Return the times to the first token (F,), in s; if there is none, to the end or so far."""
        return np.concatenate(self._waits) if self._waits else np.empty(0)

    def extend(self, stream: Callable[[int], StreamSoFar], count: int, now_ns: int) -> None:
        """Go on with the requests from the end of the prefix up to `count`; `stream` returns one by its position."""
        while self._known < count:
            chunk = [stream(place) for place in range(self._known, min(count, self._known + CHUNK))]
            fates = self._judged(chunk, now_ns)
            certain = np.array([one.outcome is not None for one in chunk])
            certain |= (fates == MISSED).all(axis=0)
            accepted = len(chunk) if certain.all() else int(np.argmin(certain))
            waits = [((one.tokens_ns[0] if len(one.tokens_ns) else _end(one, now_ns)) - one.commit_ns) for one in chunk]
            self._fates.append(fates[:, :accepted])
            self._waits.append(np.array(waits[:accepted], np.float64) / 1e9)
            self._known += accepted
            if accepted < len(chunk):
                return

    def _judged(self, chunk: Sequence[StreamSoFar], now_ns: int) -> Fates:
        """Return the fates (C, R); MISSED of a request in flight is certain, any other fate of it is not."""
        views = [one if one.outcome is not None else _at_best(one, now_ns) for one in chunk]
        classes = list({id(one.slo): one.slo for one in views}.values())
        places = {id(slo): index for index, slo in enumerate(classes)}
        recorded = Recorded.of(
            [one.tokens_ns for one in views],
            [one.commit_ns for one in views],
            [_end(one, now_ns) for one in views],
            [one.outcome or "completed" for one in views],
            [one.kinds for one in views],
            [one.input_tokens for one in views],
        )
        judged = judge_many(recorded, classes, np.array([places[id(one.slo)] for one in views], np.int64))
        goals = np.array([fluid_goal(one.slo) for one in views])
        fates = np.stack([clause.fates(judged, goals) for clause in self._clauses])
        flying = np.array([one.outcome is None for one in chunk])
        for row, clause in enumerate(self._clauses):
            if clause.metric == "fluidity_ok_share":  # tokens in time can still make up for those that were late
                fates[row, flying] = UNREPORTED
        return fates


def _at_best(one: StreamSoFar, now_ns: int) -> StreamSoFar:
    """Return a request in flight as if its next token arrived now and were its last.

    Every deadline that it misses so is missed for good; but a mean time per token can still recover, so that of that
    policy only the first token counts.
    """
    tokens = [*one.tokens_ns, now_ns]
    kinds = None if one.kinds is None else [*one.kinds, one.slo.reads[0]]
    if one.slo.deadline.policy == "ttft_tpot":
        tokens, kinds = tokens[:1], None if kinds is None else kinds[:1]
    return one._replace(tokens_ns=tokens, kinds=kinds, end_ns=now_ns)


def _end(one: StreamSoFar, now_ns: int) -> int:
    return now_ns if one.end_ns is None else one.end_ns
