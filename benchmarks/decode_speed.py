"""How fast OTLP becomes token times, beside the floor: the parse, and reading each event's time and nothing else.

    python benchmarks/decode_speed.py [--encoding sdk,sparse] [--shape segments,whole,small,single] [--only forms|kinds]

All on one core in this process; columns are ns a token, best of several runs.

`forms`: messages of a fleet in the forms that reach a collector, each read alone (`one`), and 16 of them together, as
those that wait are (`16`). A form through rotel is first sent through it, which takes 10 s.

`kinds`: one message whose tokens are content or reasoning, through protobuf. `plain` is the obvious loop that also
looks at each event's name and attributes, as `decode` must.
"""

from __future__ import annotations

import argparse
import gc
import time
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from collector_load.forms import SHAPES, add_form_options, explained, form_of
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_llm import semconv
from otel_llm.formats.otlp.export_request import decode, parse, read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T0_NS = 1_790_000_000_000_000_000
TOKENS = 32_000
RUNS = 9
JOINED = 16
FORM_STREAMS = {"segments": 256, "whole": 256, "small": 100, "single": 20}
FORM_SECONDS = 10.0
FORM_TOKENS = 40_000
"""The last messages of these seconds that hold so many tokens are read: streams begin, go on and end in them."""
FORM_RUNS = 7
FORM_RUNS_S = 1.5
"""No run is begun later than this after the first, but for the second and third."""


def message(tokens_a_segment: int, kind: str | None) -> bytes:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for seq in range(TOKENS // tokens_a_segment):
        span = spans.add(
            trace_id=b"t" * 16,
            span_id=b"s" * 8,
            parent_span_id=b"p" * 8,
            name=semconv.SEGMENT_SPAN,
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=T0_NS,
            end_time_unix_nano=T0_NS + 10**9,
            flags=0x100,
        )
        for key, value in ((semconv.SEGMENT_SEQ, seq), (semconv.SEGMENT_FIRST_TOKEN, seq * tokens_a_segment)):
            span.attributes.add(key=key).value.int_value = value
        for i in range(tokens_a_segment):
            event = span.events.add(name=semconv.TOKEN_EVENT, time_unix_nano=T0_NS + i)
            if kind is not None:
                event.attributes.add(key=semconv.TOKEN_KIND).value.string_value = kind
    return request.SerializeToString()


def each_span(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield from scope.spans


def floor(request: ExportTraceServiceRequest) -> None:
    for span in each_span(request):
        [event.time_unix_nano for event in span.events]


def plain(request: ExportTraceServiceRequest) -> None:
    for span in each_span(request):
        [e.time_unix_nano for e in span.events if e.name == semconv.TOKEN_EVENT and not len(e.attributes)]


def ns_a_token(raw: bytes, step: Callable[[ExportTraceServiceRequest], object]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        request = parse(raw)  # wrappers are cached on a message: each run reads a fresh one
        gc.collect()
        start = time.perf_counter()
        step(request)
        best = min(best, time.perf_counter() - start)
    return best / TOKENS * 1e9


def parse_ns_a_token(raw: bytes) -> float:
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        parse(raw)
        best = min(best, time.perf_counter() - start)
    return best / TOKENS * 1e9


def best_s(steps: Sequence[Callable[[], object]]) -> list[float]:
    """Return the CPU seconds of the fastest run of each step, of 3 to `FORM_RUNS`.

    They run in turns, so that a slow moment of the machine meets all of them.
    """
    times: list[list[float]] = []
    began = time.perf_counter()
    while len(times) < 3 or (len(times) < FORM_RUNS and time.perf_counter() - began < FORM_RUNS_S):
        times.append([])
        for step in steps:
            gc.collect()
            start = time.process_time()
            step()
            times[-1].append(time.process_time() - start)
    return [min(own) for own in zip(*times, strict=True)]


def read_times(raws: Sequence[bytes]) -> int:
    """Return how many token times stand in messages: the floor."""
    return sum(len([e.time_unix_nano for e in span.events]) for raw in raws for span in each_span(parse(raw)))


def read_alone(raws: Sequence[bytes]) -> None:
    for raw in raws:
        read_all((raw,))


def read_joined(raws: Sequence[bytes]) -> None:
    for at in range(0, len(raws), JOINED):
        read_all(raws[at : at + JOINED])


def steady(messages: Sequence[bytes]) -> tuple[list[bytes], int]:
    """Return the last messages that hold `FORM_TOKENS` tokens (all, if they hold less), and how many those are."""
    tokens, first = 0, len(messages)
    while first and tokens < FORM_TOKENS:
        first -= 1
        tokens += read_times(messages[first : first + 1])
    return [*messages[first:]], tokens


def print_forms(chosen: argparse.Namespace) -> None:
    print(
        f"{'segment':>8} {'encoding':<9}{'shape':<9}{'bytes':>9}{'floor':>8}{'one':>9}{JOINED:>9}"
        f"{'one x floor':>13}{f'{JOINED} x floor':>12}"
    )
    for size, encoding, shape in product(chosen.segment_tokens, chosen.encoding, chosen.shape):
        form = form_of("healthy", size, encoding, shape, streams=FORM_STREAMS[shape], together=None)
        recording, _ = form.record(FORM_SECONDS)
        raws, tokens = steady(recording.messages())
        steps = (partial(read_times, raws), partial(read_alone, raws), partial(read_joined, raws))
        floor, one, joined = (seconds / tokens * 1e9 for seconds in best_s(steps))
        print(
            f"{size:>8} {encoding:<9}{shape:<9}{sum(map(len, raws)) / len(raws):>9.0f}{floor:>8.0f}{one:>9.0f}"
            f"{joined:>9.0f}{one / floor:>13.2f}{joined / floor:>12.2f}",
            flush=True,
        )


def print_kinds(sizes: Sequence[int]) -> None:
    print(
        f"{'segment':>8}{'kind':>11}{'parse':>8}{'floor':>8}{'plain':>8}{'decode':>8}{'M tokens/s':>12}{'x floor':>9}"
    )
    for size in sizes:
        for kind in (None, "reasoning"):
            raw = message(size, kind)
            parsed, lowest, obvious, ours = (
                parse_ns_a_token(raw),
                *(ns_a_token(raw, step) for step in (floor, plain, decode)),
            )
            print(
                f"{size:>8}{kind or 'content':>11}{parsed:>8.0f}{lowest:>8.0f}{obvious:>8.0f}{ours:>8.0f}"
                f"{1e3 / (parsed + ours):>8.2f}{(parsed + ours) / (parsed + lowest):>9.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=explained("--encoding", "--shape"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=("forms", "kinds"), help="one of the two tables")
    add_form_options(parser, encodings=["sdk", "sparse"], shapes=[*SHAPES])
    chosen = parser.parse_args()
    if chosen.only in {None, "forms"}:
        print_forms(chosen)
    if chosen.only in {None, "kinds"}:
        print_kinds(chosen.segment_tokens)


if __name__ == "__main__":
    main()
