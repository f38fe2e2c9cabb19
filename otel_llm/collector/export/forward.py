"""Forwarding of every accepted export, unchanged, to another OTLP endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.collector.export.send_queue import GIVE_UP_S, OutQueue
from otel_llm.config.otlp_target import AGENT
from otel_llm.export.settings import OtlpSettings
from otel_llm.export.transport.grpc import GrpcSender
from otel_llm.export.transport.http import HttpSender

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.config.otlp_target import OtlpTarget
    from otel_llm.export.transport.attempt import Attempt

DEFAULT_QUEUE_BYTES: Final = 64 * 2**20
REQUEST_BYTES: Final = 2**20
"""The most bytes of exports in one request; a larger export is sent alone. gRPC servers refuse more than 4 MiB by
default. With a distant endpoint, fewer and larger requests have a higher throughput."""


class Forwarder:
    """Forwards exports: call `start`, `offer` for each, `stop` once.

    The concatenation of several requests is one request, as protobuf merges repeated fields: nothing is decoded.
    """

    def __init__(
        self, target: OtlpTarget, queue_bytes: int = DEFAULT_QUEUE_BYTES, give_up_s: float = GIVE_UP_S
    ) -> None:
        self._sender = sender_to(target)
        self._queue: OutQueue[bytes] = OutQueue(
            "forwarding",
            self._send,
            self._sender.close,
            size=len,
            capacity=queue_bytes,
            batch=REQUEST_BYTES,
            timeout_s=target.timeout_s,
            give_up_s=give_up_s,
        )

    def start(self) -> None:
        """Start sending."""
        self._queue.start()

    def offer(self, raw: bytes) -> None:
        """Queue a serialized ExportTraceServiceRequest, or drop and count it; never wait and never raise."""
        self._queue.offer(raw)

    def stop(self, grace_s: float) -> bool:
        """Send the queue within `grace_s` seconds, drop and count the rest; return whether none was dropped."""
        return self._queue.stop(grace_s)

    def counts(self) -> dict[str, int]:
        """Return the counts of exports, by the keys of the collector's counts."""
        counts = self._queue.counts
        return {
            "forward_queued_bytes": self._queue.queued,
            "forward_sent": counts.sent,
            "forward_dropped": self._queue.dropped,
            "forward_failed": counts.failed,
            "forward_retries": counts.retries,
            "forward_rejected_spans": counts.rejected,
        }

    def _send(self, exports: Sequence[bytes], timeout_s: float) -> Attempt:
        return self._sender.send(b"".join(exports), timeout_s)


def sender_to(target: OtlpTarget) -> GrpcSender | HttpSender:
    """Return the sender of applications, which makes one attempt at a time, for a target of the service."""
    over_grpc = target.protocol == "grpc"
    settings = OtlpSettings(
        protocol=target.protocol,
        endpoint=target.authority if over_grpc else target.url("traces"),
        insecure=not target.tls,
        headers=target.metadata(),
        timeout_s=target.timeout_s,
        compression=target.compression,
        certificate=None if target.ca_file is None else str(target.ca_file),
        agent=AGENT,
    )
    if not over_grpc:
        return HttpSender(settings, target.session())
    import grpc  # noqa: F401  imported now: later it would hold up the evaluator for 0.1 s

    return GrpcSender(settings)
