"""The results of a soak of a relay: judged reply by reply, and accounted for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from support.relay.fake_model import FakeModel, Json
from support.relay.readers import Reply
from support.relay.resuming import seen_of

from otel_llm import semconv


@dataclass(slots=True)
class Sample:
    """The relay at one moment."""

    at_s: float
    open_files: int
    rss_bytes: int
    in_flight: int
    tasks: int
    counts: Counter[str]


@dataclass
class Soaked:
    """The results: how replies ended by kind, the relay over time, and what is not as it must be."""

    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    gaps_s: list[float] = field(default_factory=list)
    """The longest gap of each whole reply whose client read as fast as it came."""
    samples: list[Sample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    actions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Signed actions that were sent, by verb (or `forged`) and answer."""
    asked: int = 0
    pauses: Counter[str] = field(default_factory=Counter)
    """Pauses by what ended them: the stream went on, or was over."""
    migrations: dict[str, float] = field(default_factory=dict)
    owned: dict[str, str] = field(default_factory=dict)
    """How each owned request ended for its client, by trace id."""

    @property
    def requests(self) -> int:
        return sum(self.ends.values())


class Receiver:
    """Takes what the relay exports: request spans and ends of streams, counted by trace id."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.outcomes: dict[str, list[str]] = {}
        self.events: dict[str, list[str]] = {}
        """Names of the events of pauses, in their order, by trace id."""

    async def take(self, request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await request.read())
        for span in (span for resource in message.resource_spans for one in resource.scope_spans for span in one.spans):
            trace_id = span.trace_id.hex()
            if span.name != semconv.SEGMENT_SPAN:
                self.requests[trace_id] += 1
                names = [one.name for one in span.events if one.name in (semconv.PAUSED_EVENT, semconv.RESUMED_EVENT)]
                if names:
                    self.events.setdefault(trace_id, []).extend(names)
            for pair in span.attributes:
                if span.name == semconv.SEGMENT_SPAN and pair.key == semconv.OUTCOME:
                    self.outcomes.setdefault(trace_id, []).append(pair.value.string_value)
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )


def judged(reply: Reply, body: Json) -> str:
    """Name how a reply ended, WRONG if it should not have."""
    if reply.status != 200:
        return f"answered {reply.status}" if reply.status else f"WRONG: {reply.errors}"
    if not reply.heads and not reply.errors and not reply.done:
        return "answered 200"  # a page
    expected = seen_of(b"".join(FakeModel().chunks(body)))
    ids = expected.ids if body["return_token_ids"] else []
    if any("client" in error for error in reply.errors):
        return f"WRONG: {reply.errors}"
    same = (reply.text, reply.ids, [reply.finish]) == (expected.text, ids, expected.finishes)
    if reply.errors and reply.finish is not None:
        return "whole, an error behind it" if same else "WRONG: not as undisturbed"
    if reply.errors and reply.errors[0].get("type") == "aborted":
        whole = not reply.done and expected.text.startswith(reply.text) and ids[: len(reply.ids)] == reply.ids
        return "cut" if whole else "WRONG: an aborted reply"
    if reply.errors:
        cut = not reply.done and len(reply.errors) == 1
        whole = cut and expected.text.startswith(reply.text) and ids[: len(reply.ids)] == reply.ids
        return "cut" if whole else "WRONG: a cut reply"
    if reply.finish is None:
        return "WRONG: ended without a finish and without an error"
    if reply.done:
        return (
            "whole" if same and reply.usage == expected.usage and len(reply.heads) == 1 else "WRONG: not as undisturbed"
        )
    return "whole, no [DONE]" if same else "WRONG: not as undisturbed"


def account(found: Soaked, received: Receiver, samples: dict[str, float]) -> None:
    """Check that each request is in the rows and in the metrics once, with an outcome that its client can agree to."""
    counted = sum(value for name, value in samples.items() if name.startswith("otel_llm_relay_requests_total"))
    if counted != found.requests:
        found.problems.append(f"{found.requests} requests were made, {counted:.0f} counted")
    unknown = received.requests.keys() - found.owned.keys()
    if unknown:
        found.problems.append(f"{len(unknown)} request spans of nobody's request")
    for trace_id, end in found.owned.items():
        times, outcomes = received.requests[trace_id], received.outcomes.get(trace_id, [])
        if times != 1 or len(outcomes) != 1:
            found.problems.append(f"{trace_id} ({end}): {times} request spans, ends of its stream: {outcomes}")
        elif (end.startswith("whole") and outcomes != ["completed"]) or (end == "cut" and outcomes != ["error"]):
            found.problems.append(f"{trace_id} ({end}): recorded as {outcomes}")
    _account_for_actions(found, received, samples)
    name = "otel_llm_relay_migrations_total"
    for sample, value in samples.items():
        if sample.startswith(name):
            outcome = sample.partition('outcome="')[2].partition('"')[0]
            found.migrations[outcome] = found.migrations.get(outcome, 0) + value


def _account_for_actions(found: Soaked, received: Receiver, samples: dict[str, float]) -> None:
    """Check that each action is counted once, and that each pause ended: its stream went on, or was over."""
    counted = sum(value for name, value in samples.items() if name.startswith("otel_llm_relay_received_actions_total"))
    if counted != found.asked:
        found.problems.append(f"{found.asked} actions were sent, {counted:.0f} counted")
    for trace_id, names in received.events.items():
        while names[:2] == [semconv.PAUSED_EVENT, semconv.RESUMED_EVENT]:
            found.pauses["the stream went on"] += 1
            del names[:2]
        if names == [semconv.PAUSED_EVENT]:
            end = found.owned.get(trace_id, "")
            found.pauses[f"then {end}"] += 1
            if end.startswith("whole"):
                found.problems.append(f"{trace_id}: whole, and its pause has no end")
        elif names:
            found.problems.append(f"{trace_id}: {names} are no pauses")
    preempted = samples.get("otel_llm_relay_preempted_total")
    if preempted != sum(found.pauses.values()):
        found.problems.append(f"{preempted} streams were preempted, {sum(found.pauses.values())} pauses are on spans")
    if samples.get("otel_llm_relay_paused") != 0:
        found.problems.append(f"{samples.get('otel_llm_relay_paused')} streams are paused at rest")


def slope(samples: list[Sample]) -> float:
    """Return how fast the memory grows behind the first quarter (MiB/min), by least squares."""
    points = [(one.at_s / 60, one.rss_bytes / 2**20) for one in samples[len(samples) // 4 :]]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    over = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / over if over else 0.0


def table(one: Sample) -> str:
    """Return a sample as a line."""
    counts: dict[str, int] = {"whole": 0, "cut": 0, "vanished": 0, "answered": 0, "passed": 0, "WRONG": 0}
    for end, count in one.counts.items():
        counts[next(name for name in counts if end.startswith(name))] += count
    reported = "".join(f"{count:10d}" for count in counts.values())
    now = f"{one.in_flight:10d}{one.open_files:8d}{one.tasks:8d}{one.rss_bytes / 2**20:9.1f}"
    return f"{one.at_s:7.0f}s{reported}{now}"


HEAD: Final = (
    "".join(
        (
            f"{'at':>8}",
            *(f"{name:>10}" for name in ("whole", "cut", "vanished", "answered", "passed", "WRONG", "in flight")),
        )
    )
    + f"{'files':>8}{'tasks':>8}{'MiB':>9}"
)
