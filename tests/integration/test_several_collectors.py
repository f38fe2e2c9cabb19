"""Real collectors behind our exporter's routing, beside one: counters add up, over a kill and an addition."""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext
from prometheus_client.parser import text_string_to_metric_families
from support.commands import wait_until
from support.integration.interop_service import Service
from support.patience import WAIT_S

from otel_llm import semconv
from otel_llm.export.endpoints import ENDPOINTS_VARIABLE, listed_settings
from otel_llm.export.outbox import Outbox
from otel_llm.export.records import AttributeValue, Origin, Record, RequestRecord, Segment
from otel_llm.export.routing import Rendezvous, RoutedOutbox, outbox_for
from otel_llm.export.settings import OtlpSettings

MS = 1_000_000
STREAMS = 60
TOKENS = 40
FLUSH_S = 60.0
OPTIONS = ("--window", "1s", "--lateness", "1s", "--lost-after", "120s")
UNCERTAIN = ("otel_llm_idle_seconds", "otel_llm_penalty")
"""These grow with each look at a stream in flight, before a refund: it is not the same instant in two collectors."""


def stream(number: int, commit_ns: int) -> list[Record]:
    """Return the records of a stream of 40 tokens: some stall, some fail, some are of another class.

    One in five has no request span: it is judged by its segments alone, after the lateness.
    """
    trace_id = number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128
    origin = Origin(SpanContext(trace_id, number, is_remote=False), Resource({}))
    stall_ns = 2500 * MS if number % 3 == 0 else 0
    times = [commit_ns + at * 20 * MS + (stall_ns if at > 10 else 0) for at in range(1, TOKENS + 1)]
    identity: dict[str, AttributeValue] = {
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_REQUEST_MODEL: "m",
        semconv.MEASURED_AT: "client",
        semconv.SLO_CLASS: ("chat", "agent")[number % 2],
    }
    ending: dict[str, AttributeValue] = {
        semconv.OUTCOME: "error" if number % 4 == 0 else "completed",
        semconv.TOKENS: TOKENS,
        semconv.TOKEN_BASIS: "exact",
        semconv.SEGMENTS: 4,
    }
    records: list[Record] = []
    start_ns = commit_ns
    for seq, (first, until, said) in enumerate([(0, 0, identity), (0, 15, {}), (15, 30, {}), (30, TOKENS, ending)]):
        end_ns = times[until - 1] if until else start_ns
        placed = {semconv.SEGMENT_SEQ: seq, semconv.SEGMENT_FIRST_TOKEN: first, **said}
        records.append(Segment(origin, number << 8 | seq, start_ns, end_ns, times[first:until], None, placed))
        start_ns = end_ns
    if number % 5:
        said = {**identity, **ending}
        span = RequestRecord(origin.parent, None, origin.resource, "chat m", commit_ns, start_ns, said, None)
        records.append(span)
    return records


def streams(first: int) -> list[list[Record]]:
    commit_ns = time.time_ns() - 5000 * MS
    return [stream(number, commit_ns + number * MS) for number in range(first, first + STREAMS)]


def counters(service: Service) -> Counter[str]:
    """Return the counters of what readers felt, and the numbers in histograms, by name and labels; zeros left out."""
    with urllib.request.urlopen(f"http://127.0.0.1:{service.ports[2]}/metrics", timeout=WAIT_S) as answer:
        page = answer.read().decode()
    return Counter(
        {
            f"{sample.name}{sorted(sample.labels.items())}": int(sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name.endswith(("_total", "_count", "_bucket"))
            and sample.name.startswith("otel_llm_")
            and not sample.name.startswith(("otel_llm_collector_", *UNCERTAIN))
            and sample.value
        }
    )


@dataclass
class Fleet:
    """Collectors, and the outbox that sends to them."""

    services: Sequence[Service]
    outbox: Outbox | RoutedOutbox = field(init=False)
    before_kill: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.use(self.services)

    def use(self, services: Sequence[Service]) -> None:
        """Send to these from now on, as an application does that is started with another list."""
        self.services = services
        self.outbox = outbox_for(self.settings)

    @property
    def settings(self) -> dict[str, OtlpSettings]:
        return listed_settings({ENDPOINTS_VARIABLE: ",".join(f"http://{one.grpc}" for one in self.services)})

    def owners(self, sent: list[list[Record]]) -> list[str]:
        chosen = Rendezvous(self.settings)
        return [chosen.choose(records[0].trace_id) for records in sent]

    def put(self, sent: list[list[Record]], part: slice) -> None:
        for records in sent:
            self.outbox.put(records[part])

    def total(self, name: str) -> float:
        return sum(one.metric(f"otel_llm_collector_{name}_total") for one in self.services)

    def counters(self) -> Counter[str]:
        return sum(map(counters, self.services), start=Counter(self.before_kill))


def requests_of(found: Counter[str]) -> Counter[str]:
    return Counter({name: value for name, value in found.items() if name.startswith("otel_llm_requests_total")})


@contextmanager
def running(folder: Path, count: int) -> Iterator[list[Service]]:
    services = [Service(folder / str(number), OPTIONS) for number in range(count)]
    with ExitStack() as stack:
        for one in services:
            one.folder.mkdir()
            one.start()
            stack.callback(one.kill)
        for one in services:
            one.wait_ready()
        yield services


def test_counters_of_several_collectors_are_those_of_one_but_for_streams_that_moved(tmp_path: Path) -> None:
    with running(tmp_path, 5) as (single, *fleet_of_four):
        one, fleet = Fleet([single]), Fleet(fleet_of_four[:3])
        steady(one, fleet)
        killed_and_back(one, fleet)
        one_added(one, fleet, fleet_of_four)
        assert (one.outbox.dropped, fleet.outbox.dropped) == (0, 0)


def steady(one: Fleet, fleet: Fleet) -> None:
    sent = streams(1)
    for each in (one, fleet):
        each.put(sent, slice(None))
        assert each.outbox.flush(FLUSH_S)
        wait_until("all are judged", lambda each=each: each.total("judged") == STREAMS)
    assert requests_of(one.counters()).total() == STREAMS
    assert fleet.counters() == one.counters()
    assert all(service.metric("otel_llm_collector_judged_total") for service in fleet.services)
    assert fleet.total("partial") == one.total("partial") == 0


def killed_and_back(one: Fleet, fleet: Fleet) -> None:
    """A collector is killed in mid-stream: its segments wait for it, and the others notice nothing."""
    sent = streams(1001)
    segments = [each.total("segments") for each in (one, fleet)]
    for each, before in zip((one, fleet), segments, strict=True):
        each.put(sent, slice(2))
        assert each.outbox.flush(FLUSH_S)
        wait_until("segments", lambda each=each, goal=before + 2 * STREAMS: each.total("segments") == goal)
    victim, *others = fleet.services
    fleet.before_kill += counters(victim)
    victim.kill()
    judged = {service.grpc: service.metric("otel_llm_collector_judged_total") for service in others}
    for each in (one, fleet):
        each.put(sent, slice(2, None))
    assert one.outbox.flush(FLUSH_S)
    assert not fleet.outbox.flush(FLUSH_S, patient=False)
    owners = fleet.owners(sent)
    for service in others:
        goal = judged[service.grpc] + owners.count(f"http://{service.grpc}")
        wait_until(
            "the others judge theirs",
            lambda service=service, goal=goal: service.metric("otel_llm_collector_judged_total") == goal,
        )
    victim.start()
    victim.wait_ready()
    assert fleet.outbox.flush(FLUSH_S)
    wait_until("its streams are judged, too", lambda: requests_of(fleet.counters()).total() == 2 * STREAMS)
    wait_until("and those of the one", lambda: requests_of(one.counters()).total() == 2 * STREAMS)
    assert fleet.counters() == one.counters()
    assert fleet.total("partial") == one.total("partial") == 0
    assert owners.count(f"http://{victim.grpc}") > 0


def one_added(one: Fleet, fleet: Fleet, services: list[Service]) -> None:
    """Streams in flight go on with a longer list: only those of the new collector move."""
    sent = streams(2001)
    for each in (one, fleet):
        each.put(sent, slice(2))
        assert each.outbox.flush(FLUSH_S)
    owners = fleet.owners(sent)
    assert fleet.outbox.dropped == 0
    assert fleet.outbox.close(FLUSH_S)
    fleet.use(services)
    moved = sum(was != now for was, now in zip(owners, fleet.owners(sent), strict=True))
    for each in (one, fleet):
        each.put(sent, slice(2, None))
        assert each.outbox.flush(FLUSH_S)
        wait_until("all have ended somewhere", lambda each=each: requests_of(each.counters()).total() == 3 * STREAMS)
    assert 0 < moved < STREAMS
    assert (fleet.total("partial"), one.total("partial")) == (moved, 0)
    was, now = requests_of(one.counters()), requests_of(fleet.counters())
    assert all(abs(now[name] - was[name]) <= moved for name in was | now)
    unmet = sum(value for name, value in now.items() if "'met', 'null'" in name)
    assert unmet - sum(value for name, value in was.items() if "'met', 'null'" in name) == moved
