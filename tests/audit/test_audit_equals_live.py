"""The audit of a journal says what the live evaluator said: rows and windows, to the bit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.live import Live
from support.otlp import T0_NS, Value, export, stream_spans

import otel_llm.audit
from otel_llm import semconv
from otel_llm.audit import Audit
from otel_llm.formats.io.journal_format import frame
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import SloClasses

MS = 1_000_000
Delivery = tuple[int, ExportTraceServiceRequest]


def both(
    tmp_path: Path, deliveries: Sequence[Delivery], classes: SloClasses, window_ns: int = 10_000 * MS
) -> tuple[Live, Audit]:
    """Evaluate deliveries live, and audit the journal that a collector would have written of them."""
    ordered = sorted(deliveries, key=lambda one: one[0])
    path = tmp_path / "journal.otlp"
    path.write_bytes(b"".join(frame(message.SerializeToString(), at_ns) for at_ns, message in ordered))
    live = Live(classes=classes, window_ns=window_ns).run(ordered)
    return live, otel_llm.audit.load(path, slo=classes, window=window_ns / 1e9)


def by_key(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return sorted((dict(row) for row in rows), key=str)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("window_ms", [1000, 10_000])
def test_a_busy_minute_has_the_same_rows_and_windows(tmp_path: Path, seed: int, window_ms: int) -> None:
    chance = random.Random(seed)
    deliveries: list[Delivery] = []
    for number in range(1, 60):
        commit_ns = T0_NS + chance.randrange(60_000) * MS
        at_ns, tokens = commit_ns, []
        for _ in range(chance.randrange(60)):
            at_ns += chance.choice([0, 5, 40, 40, 40, 900]) * MS + chance.randrange(MS)
            tokens.append(at_ns)
        outcome = chance.choice(["completed", "completed", "completed", "cancelled", "error", "disconnected"])
        end_ns = at_ns + chance.choice([0, 700 * MS])
        identity: dict[str, Value] = {
            semconv.GEN_AI_REQUEST_MODEL: chance.choice(["a", "b"]),
            semconv.SLO_CLASS: chance.choice(["chat", "voice", "code"]),
            semconv.INSTANCE: "gpu-0",
        }
        spans = stream_spans(
            tokens,
            request=number,
            commit_ns=commit_ns,
            end_ns=end_ns,
            outcome=outcome,
            segment_tokens=5,
            identity=identity,
        )
        if chance.random() < 0.2 and len(spans) > 3:
            del spans[chance.randrange(1, len(spans) - 1)]  # a hole: what was charged before it is given back
        deliveries += [(span.end_time_unix_nano + chance.randrange(300) * MS, export(span)) for span in spans]
    live, audit = both(tmp_path, deliveries, load_slo(), window_ms * MS)

    assert live.windowing.late == 0
    assert by_key(live.rows) == by_key(audit.rows)
    assert by_key(live.windows) == by_key(audit.window_rows)
