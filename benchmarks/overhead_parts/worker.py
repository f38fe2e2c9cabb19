"""In a process of its own: what one variant adds to a chunk, or what it recorded of a reply that is known."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import os
import time
import urllib.request
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from overhead_parts.said import reported
from overhead_parts.servers import HEADERS_AFTER_S, TOKEN_AFTER_S
from overhead_parts.stacks import STACKS, Source, once
from overhead_parts.variants import OURS, PEERS, Exits, Switch
from overhead_parts.wires import TEXTLESS

REPLIES = 4
"""Replies in one measurement, after which the instrumentation is flushed."""
PAIRS = 6
TOKENS = 2000
PACED_HZ = 50.0
PACED_S = 10.0


def missing(stack: str, variant: str) -> str | None:
    """Return the module that this interpreter lacks for a measurement."""
    needs = [*STACKS[stack].needs] if variant == OURS else [*STACKS[stack].needs[:1], PEERS[variant][0]]
    return next((module for module in needs if not _found(module)), None)


def _found(need: str) -> bool:
    module, _, major = need.partition(">=")
    try:
        there = find_spec(module) is not None
    except ModuleNotFoundError:
        return False
    return there and (not major or int(version(module).partition(".")[0]) >= int(major))


def cpu(stack: str, variant: str, mode: str, served: str | None, paced: int = 0) -> list[list[float]]:
    """Return the CPU us a chunk of each pair of turns: bare, instrumented; `paced` replies at the pace of a model."""
    one = STACKS[stack]
    parts = one.wire(int(PACED_HZ * PACED_S) if paced else one.chunks)
    replies, together = (1, paced) if paced else (REPLIES, 1)
    # Ours makes its own way out of the environment, as in an application.
    switch = Switch(variant, None if variant == OURS else Exits(_otlp()))
    if served is not None:
        _script(served, parts, {}, 0)
    memory = Source(parts, pace_s=1 / PACED_HZ if paced else 0.0)
    made = one.reader(Source(parts, f"{served}/v1", served=True) if served else memory, mode)
    bare, full = made if isinstance(made, tuple) else (made, made)
    loop = asyncio.new_event_loop()

    def turn(read: Any) -> float:
        before = time.process_time_ns()
        for _ in range(replies):
            once(read, loop, together)
        switch.flush()
        gc.collect()  # each turn pays for the garbage it made, none for another's
        return (time.process_time_ns() - before) / 1e3 / (len(parts) * replies * together)

    def off() -> float:
        with switch.off():
            return turn(bare)

    off(), turn(full)
    gc.freeze()
    return [[off(), turn(full)] for _ in range(2 if paced else PAIRS)]


def _otlp() -> Any:
    if os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter()


def _script(url: str, parts: list[bytes], pauses: dict[int, float], first: int) -> None:
    body = json.dumps({"parts": [part.decode("latin-1") for part in parts], "pauses": pauses, "first": first}).encode()
    urllib.request.urlopen(f"{url}/script", data=body, timeout=30).read()


def truth(stack: str, variant: str, mode: str, served: str | None) -> dict[str, Any]:
    """Return what was recorded of a reply of 2,000 tokens beside what the server knows of it."""
    from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
    from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    assert served is not None
    one = STACKS[stack]
    delta: dict[type, AggregationTemporality] = dict.fromkeys((Counter, Histogram), AggregationTemporality.DELTA)
    spans, metrics = InMemorySpanExporter(), InMemoryMetricReader(delta)
    switch = Switch(variant, Exits(spans, MeterProvider([metrics])))
    _script(served, one.wire(1), {}, 0)
    made = one.reader(Source([], f"{served}/v1", served=True), mode)
    assert not isinstance(made, tuple)
    loop = asyncio.new_event_loop()
    with switch.off():
        once(made, loop)
    switch.flush()
    unasked = len(spans.get_finished_spans())
    once(made, loop)  # the first imports and connections count in no TTFT
    switch.flush()
    metrics.get_metrics_data()
    before = len(spans.get_finished_spans())
    _script(served, one.wire(TOKENS), {0: HEADERS_AFTER_S, TEXTLESS: TOKEN_AFTER_S}, TEXTLESS)
    once(made, loop)
    switch.flush()
    known = json.loads(urllib.request.urlopen(f"{served}/truth", timeout=30).read())
    recorded = reported(spans.get_finished_spans()[before:], metrics.get_metrics_data())
    return {**dataclasses.asdict(recorded), "true_ttft_s": known["ttft_s"], "recorded_while_off": unasked}


def main() -> None:
    """Print the result as JSON; exit with status 3 and the module's name if one is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("cpu", "truth"))
    parser.add_argument("stack", choices=STACKS)
    parser.add_argument("variant", choices=(OURS, *PEERS))
    parser.add_argument("mode", choices=("sync", "async"))
    parser.add_argument("--served")
    parser.add_argument("--paced", type=int, default=0)
    chosen = parser.parse_args()
    if absent := missing(chosen.stack, chosen.variant):
        print(absent)
        raise SystemExit(3)
    measurement: tuple[str, str, str, str | None] = (chosen.stack, chosen.variant, chosen.mode, chosen.served)
    result = cpu(*measurement, chosen.paced) if chosen.what == "cpu" else truth(*measurement)
    print(json.dumps(result), flush=True)
    os._exit(0)  # what a variant does at the end of its process is not what is measured


if __name__ == "__main__":
    main()
