"""The encodings of one fleet's exports: as the SDK writes them, without what is default, through a Collector."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from collector_load.recording import Recording
from collector_load.rotel import running_rotel
from collector_load.sender import sending
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collector_load.fleet import Export

ENCODINGS: Final = {
    "sdk": "as OpenTelemetry's Python SDK and this package write it: fields in order, an empty status, flags",
    "sparse": "as an encoder that leaves defaults out: spans without status and without flags",
    "rotel": "what rotel, an OpenTelemetry Collector, forwards of `sdk`: the same spans in batches of its own (200 ms)",
}
_LEAD_S: Final = 3.0
"""From the writing of the exports to when the first is due: the sender reads them and connects."""


def recorded(encoding: str, exports: Iterable[Export]) -> Recording:
    """Record exports of the SDK's encoding in another one; `rotel` takes as long as the exports last.

    Raises:
        SystemExit: rotel is not installed, or did not start.
        RuntimeError: rotel lost something.
    """
    if encoding == "sparse":
        return Recording.of((due_ns, application, sparse(raw)) for due_ns, application, raw in exports)
    recording = Recording.of(exports)
    return _through_rotel(recording) if encoding == "rotel" else recording


def sparse(raw: bytes) -> bytes:
    """Return a message without the flags of its spans, and without status if it says nothing."""
    message = ExportTraceServiceRequest.FromString(raw)
    for resource in message.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                span.ClearField("flags")
                if not span.status.ByteSize():
                    span.ClearField("status")
    return message.SerializeToString()


def _through_rotel(recording: Recording) -> Recording:
    """Send a recording through rotel at its pace; each message that rotel writes is due when it wrote it.

    All of them are of one application, so that they go over one connection, as rotel's do.
    """
    forwarded: list[tuple[int, bytes]] = []
    with TemporaryDirectory(prefix="otel-llm-bench-") as folder:
        path = Path(folder) / "exports"
        with running_rotel(Path(folder), forwarded) as address:
            start_ns = time.time_ns() + int(_LEAD_S * 1e9)
            recording.write(path, start_ns)
            with sending(path, address) as sender:
                sender.go()
                sender.done()
    made = Recording.of(((due_ns, 0, raw) for due_ns, raw in forwarded), start_ns)
    if made.span_and_event_times != recording.span_and_event_times:
        raise RuntimeError(f"{recording.span_and_event_times} times went to rotel, {made.span_and_event_times} came")
    return made
