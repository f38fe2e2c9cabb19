"""A run as its observer sees it: watermark, prefix by intended time, requests in flight; beside a naive count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.bench.client.load_run import LoadRun
from otel_llm.bench.client.messages import Ended, Event, Report, Sent


@dataclass
class ScriptedWorkers:
    """Workers whose reports are given, one a step."""

    count: int
    reports: list[tuple[int, Report]] = field(default_factory=list)
    told: list[object] = field(default_factory=list)

    def receive(self, timeout_s: float) -> Iterator[tuple[int, Report]]:
        if self.reports:
            yield self.reports.pop(0)

    def send_all(self, message: object) -> None:
        self.told.append(message)


def _ended(number: int, end_ns: int) -> Ended:
    return Ended(number, end_ns, "completed", None, "chunk", None, None, 0)


@st.composite
def scripts(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], list[tuple[int, int]]]:
    """Draw a number of workers, (intended, end) of each request, and the instants at which workers report."""
    workers = draw(st.integers(1, 3))
    requests = [
        (at, at + draw(st.integers(0, 40)))
        for at in sorted(draw(st.lists(st.integers(0, 60), min_size=1, max_size=25, unique=True)))
    ]
    reports = sorted(
        (at, worker) for worker in range(workers) for at in {*draw(st.lists(st.integers(0, 110), max_size=6)), 200}
    )
    return workers, requests, reports


@settings(max_examples=examples(200))
@given(scripts())
def test_requests_in_flight_as_counted_naively(
    script: tuple[int, list[tuple[int, int]], list[tuple[int, int]]],
) -> None:
    count, requests, reports = script
    workers = ScriptedWorkers(count)
    reported: list[set[tuple[str, int]]] = [set() for _ in range(count)]
    for at_ns, worker in reports:
        events: list[Event] = []
        for number, (intended_ns, end_ns) in enumerate(requests):
            if number % count != worker:
                continue
            if intended_ns < at_ns and ("sent", number) not in reported[worker]:
                reported[worker].add(("sent", number))
                events.append(Sent(number, intended_ns, intended_ns, 1, 1))
            if end_ns < at_ns and ("ended", number) not in reported[worker]:
                reported[worker].add(("ended", number))
                events.append(_ended(number, end_ns))
        # Everything before `until_ns` is in the report: what is at that very instant is not.
        done = at_ns >= 200
        workers.reports.append((worker, Report(at_ns, at_ns, 0, 0, done, done, events)))
    run = LoadRun(workers, 0, open_loop=True)  # type: ignore[arg-type]
    while workers.reports:
        run.step(0)
        seen = [(one.intended_ns, one.number) for one in run.requests]
        assert seen == [(at, number) for number, (at, _) in enumerate(requests) if at < run.watermark_ns]
        naive = [sum(begun < at and end > at for begun, end in requests[:index]) for index, (at, _) in enumerate(seen)]
        assert run.in_flight == naive
    assert run.finished
    assert len(run.requests) == len(requests)


def test_a_run_whose_workers_have_finished_is_as_long_as_their_last_report() -> None:
    workers = ScriptedWorkers(1, [(0, Report(10, 10, 0, 0, True, True, [Sent(0, 5, 6, 1, 1), _ended(0, 9)]))])
    run = LoadRun(workers, 0, open_loop=True)  # type: ignore[arg-type]
    run.step(0)
    assert run.watermark_ns == 10
    assert run.validity().send_lag_ms == {"p50": 1e-6, "p99": 1e-6, "max": 1e-6}
