"""Egress of the service over OTLP, if it is configured: forwarded exports, its metrics, closed windows."""

from __future__ import annotations

import ipaddress
import socket
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.collector.export.metric_export import MetricsOut
from otel_llm.collector.export.send_queue import GIVE_UP_S, OutQueue
from otel_llm.collector.export.window_export import WindowsOut
from otel_llm.config.errors import StartError
from otel_llm.config.otlp_target import AGENT
from otel_llm.export.settings import OtlpSettings
from otel_llm.export.transport.grpc import GrpcSender
from otel_llm.export.transport.http import HttpSender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client.core import Metric

    from otel_llm.collector.settings import Settings
    from otel_llm.config.otlp_target import OtlpTarget
    from otel_llm.export.transport.attempt import Attempt
    from otel_llm.shared.clock import Clock
    from otel_llm.shared.web.address import Address

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


@dataclass(slots=True)
class Egress:
    """The senders to other OTLP endpoints; each has a queue and a thread of its own.

    Raises:
        StartError: a target cannot be used.
    """

    settings: Settings
    clock: Clock
    instance_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    forward: Forwarder | None = None
    windows: WindowsOut | None = None
    _metrics: MetricsOut | None = None

    def __post_init__(self) -> None:
        """Create the senders of exports and windows."""
        forward, windows = self.settings.forward, self.settings.otlp.windows
        if forward is not None:
            self.forward = Forwarder(forward, forward.queue_bytes)
        if windows is not None:
            self.windows = WindowsOut(
                windows,
                now_ns=self.clock.now_ns,
                instance_id=self.instance_id,
                queue_bytes=windows.queue_bytes,
                linger_s=windows.interval_s,
            )

    def start(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Start sending; `families` returns the current metrics."""
        metrics = self.settings.otlp.metrics
        if metrics is not None:
            self._metrics = MetricsOut(
                metrics,
                families,
                now_ns=self.clock.now_ns,
                instance_id=self.instance_id,
                interval_s=metrics.interval_s,
            )
            self._metrics.start()
        if self.forward is not None:
            self.forward.start()
        if self.windows is not None:
            self.windows.start()

    def stop_metrics(self, grace_s: float) -> None:
        """Send the metrics a last time; the evaluator's thread must still run, as it collects them."""
        if self._metrics is not None:
            self._metrics.stop(grace_s)

    def stop(self, grace_s: float) -> None:
        """Send the queued items within `grace_s` seconds; drop and count the rest."""
        for one in (self.forward, self.windows):
            if one is not None:
                one.stop(grace_s)

    def counts(self) -> dict[str, int]:
        """Return the counts of all senders, by the keys of the collector's counts."""
        counts: dict[str, int] = {}
        for one in (self.forward, self.windows, self._metrics):
            if one is not None:
                counts |= one.counts()
        return counts


def refuse_own_listeners(settings: Settings, listeners: Sequence[Address]) -> None:
    """Refuse targets that are listeners of this collector: every export would be forwarded for ever.

    Raises:
        StartError: a target is.
    """
    for target in settings.targets:
        refuse_own_listener(target, listeners)


def refuse_own_listener(target: OtlpTarget, listeners: Iterable[Address]) -> None:
    """Refuse a target that is a listener of this collector: every export would be forwarded for ever.

    `listeners`: their addresses, with the ports that the system picked. A host that does not resolve now passes; so
    does a circle through a proxy or another collector, which is not visible from here.

    Raises:
        StartError: it is.
    """
    listeners = [listener for listener in listeners if listener.port == target.port]
    if not listeners:
        return
    theirs = _addresses(target.host)
    for listener in listeners:
        ours = _addresses(listener.host)
        everywhere = any(address.is_unspecified for address in ours)
        here = any(address.is_unspecified or (everywhere and _is_local(address)) for address in theirs)
        if here or theirs & ours:
            raise StartError(
                f"{target.endpoint} is this collector's own listener {listener}: it would send to itself for ever; "
                "name another endpoint"
            )


_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def _addresses(host: str) -> set[_IPAddress]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {_plain(ipaddress.ip_address(str(where[0]).partition("%")[0])) for *_, where in found}


def _plain(address: _IPAddress) -> _IPAddress:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_local(address: _IPAddress) -> bool:
    """Return whether this machine has an address: only then can a socket be bound to it."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
