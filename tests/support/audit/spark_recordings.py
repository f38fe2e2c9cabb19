"""Requests recorded over ten minutes, their segments strewn over the files of a journal; some are not whole."""

from __future__ import annotations

from pathlib import Path
from random import Random

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.core.core_fleets import stated_total
from support.otlp import IDENTITY, T0_NS, Value, export, request_span, stream_spans, trace_id

from otel_llm import semconv
from otel_llm.formats.io.journal_format import frame

S_NS = 1_000_000_000
CLASSES = ("chat", "voice", "no such class")


def strewn(folder: Path, *, requests: int = 120, files: int = 6) -> list[Path]:
    """Write a journal of several files, in order of receipt, and return them.

    The last file is one request of an hour later: with it a reader knows that the others are complete.
    """
    random = Random(7)
    received: list[tuple[int, Span]] = []
    for number in range(1, requests + 1):
        for span in _request(number, random):
            late_ns = random.randrange(5 * S_NS)
            received.append((span.end_time_unix_nano + late_ns, span))
    received += random.choices(received, k=20)  # sent again
    received.sort(key=lambda one: one[0])
    size = len(received) // files + 1
    paths = [_write(folder / f"{i // size}.otlp", received[i : i + size]) for i in range(0, len(received), size)]
    later = _whole(requests + 1, T0_NS + 3600 * S_NS, random)
    return [*paths, _write(folder / f"{len(paths)}.otlp", [(span.end_time_unix_nano, span) for span in later])]


def _request(number: int, random: Random) -> list[Span]:
    start_ns = T0_NS + random.randrange(600 * S_NS)
    what = number % 12
    if what == 0:  # of another instrumentation
        reported: dict[str, Value] = {**IDENTITY, semconv.GEN_AI_TIME_TO_FIRST_CHUNK: random.random()}
        return [request_span(request=number, start_ns=start_ns, end_ns=start_ns + 9 * S_NS, attributes=reported)]
    spans = _whole(number, start_ns, random, choices=1 + (what == 1))
    if what == 2:  # a segment did not come
        del spans[2]
    elif what == 3:  # nor how it ended
        del spans[-2:]
    elif what == 4:  # the request span did not come: a stream without it is complete
        del spans[-1]
    elif what == 5:  # only the request span came
        spans = spans[-1:]
    return spans


def _whole(number: int, start_ns: int, random: Random, choices: int = 1) -> list[Span]:
    identity: dict[str, Value] = {
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_REQUEST_MODEL: random.choice(("m", "M")),
        semconv.MEASURED_AT: random.choice(("client", "server")),
        semconv.SLO_CLASS: random.choice(CLASSES),
        semconv.GEN_AI_USAGE_INPUT_TOKENS: random.randrange(1000),
    }
    if random.random() < 0.5:
        identity[semconv.INSTANCE] = random.choice("ab")
    spans: list[Span] = []
    latest_ns, tokens = start_ns, 0
    outcome = random.choice(("completed", "completed", "cancelled", "error"))
    reasons = tuple(random.choice(("stop", "length", "max_tokens", "content_filter", "error")) for _ in range(choices))
    for choice in range(choices):
        times = [start_ns + random.randrange(2 * S_NS)]
        gaps_ns = (20_000_001, 90_000_003, 333_333_333, 1_700_000_007)[: random.randrange(1, 5)]
        for _ in range(random.randrange(10, 150)):
            times.append(times[-1] + random.choice(gaps_ns))
        end_ns = times[-1] + random.randrange(S_NS)
        spans += stream_spans(
            *(times,),
            request=number,
            choice=choice,
            commit_ns=start_ns,
            end_ns=end_ns,
            outcome=outcome,
            segment_tokens=16,
            identity=identity,
            ending=_ending(random, len(times), reasons[choice], alone=choices == 1),
        )
        latest_ns, tokens = max(latest_ns, end_ns), tokens + len(times)
    reported: dict[str, Value] = {
        semconv.SEGMENTS: len(spans),
        semconv.OUTCOME: outcome,
        semconv.TOKENS: tokens,
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: reasons,
    }
    end = request_span(request=number, start_ns=start_ns, end_ns=latest_ns, attributes=identity | reported)
    assert end.trace_id == trace_id(number)
    return [*spans, end]


def _ending(random: Random, tokens: int, reason: str, *, alone: bool) -> dict[str, Value]:
    """Draw what a last segment says of its reply: how tokens were counted, its total, why the model stopped."""
    reported: dict[str, Value] = {semconv.TOKEN_BASIS: random.choice(("exact", "chunk", "estimated"))}
    if alone:
        reported |= stated_total(random, tokens)
    return reported if random.random() < 0.3 else {**reported, semconv.GEN_AI_RESPONSE_FINISH_REASONS: (reason,)}


def _write(path: Path, received: list[tuple[int, Span]]) -> Path:
    frames = [frame(export(span).SerializeToString(), receipt_ns) for receipt_ns, span in received]
    path.write_bytes(b"".join(frames))
    return path
