"""OTLP over gRPC: receive the bytes of TraceService/Export, hand them to `accept`, answer.

The handler is generic and gets raw bytes: the service decodes them. gRPC refuses messages larger than the limit
(RESOURCE_EXHAUSTED without RetryInfo: a retry would not fit) and compression other than gzip (UNIMPLEMENTED). Gzip is
decompressed here, so that a decompression bomb is refused while it grows. The RPC is registered as a stream of one
message: so a call without a known token takes no thread of exports, and a call whose message does not arrive can be
cancelled (CANCELLED).
"""

from __future__ import annotations

import logging
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread, local
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from otel_llm.collector.receive.errors import (
    BadRequestError,
    BusyError,
    InternalError,
    TooSlowError,
    UnsupportedContentError,
    answer,
    as_refusal,
    status,
)
from otel_llm.collector.receive.grpc_worker.connection_limits import ConnectionWatch, accepted_connections, peer_host
from otel_llm.collector.receive.gunzip import GZIP_MAGIC, gunzip
from otel_llm.collector.receive.refusal_counts import RefusalCounts
from otel_llm.collector.receive.senders import FewestFirst, sender_of
from otel_llm.collector.settings import Limits
from otel_llm.shared.clock import monotonic_s
from otel_llm.shared.errors import RefusalError, UnavailableError
from otel_llm.shared.memory import HEAP_TRIMMER
from otel_llm.shared.web.address import Address, listen, refused_address
from otel_llm.shared.web.peers import peer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from otel_llm.collector.receive.senders import Accept, Sender
    from otel_llm.config.tls import Pem
    from otel_llm.shared.web.tokens import KnownTokens

    _Handler = Callable[[Iterator[bytes], grpc.ServicerContext], bytes]

CROWDED_S: Final = 1.0
"""The timeout while other RPCs wait for a thread."""
_CHECK_S: Final = 0.25


@dataclass(slots=True)
class PendingMessage:
    """An RPC whose message has not arrived."""

    context: grpc.ServicerContext
    since_s: float
    timed_out: bool = False


class MessageTimeouts:
    """Cancels RPCs whose message takes longer than `message_s`, or CROWDED_S while `is_crowded`.

    gRPC has no timeout for a message.
    """

    def __init__(self, message_s: float, is_crowded: Callable[[], bool]) -> None:
        self._message_s = message_s
        self._is_crowded = is_crowded
        self._waiting: dict[int, PendingMessage] = {}
        """By the id of the context, in order of arrival."""
        self._lock = Lock()
        self._stop = Event()
        self._thread = Thread(target=self._run, name="otlp-grpc-timeouts", daemon=True)

    def start(self) -> None:
        """Start checking."""
        self._thread.start()

    def stop(self) -> None:
        """Stop checking."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def waiting(self, context: grpc.ServicerContext) -> Iterator[PendingMessage]:
        """Apply the timeout to an RPC within the block; the value says whether it timed out."""
        key, waiting = id(context), PendingMessage(context, monotonic_s())
        with self._lock:
            self._waiting[key] = waiting
        try:
            yield waiting
        finally:
            with self._lock:
                del self._waiting[key]

    def _run(self) -> None:
        while not self._stop.wait(_CHECK_S):
            HEAP_TRIMMER.trim_if_due()
            limit_s = min(CROWDED_S, self._message_s) if self._is_crowded() else self._message_s
            before = monotonic_s() - limit_s
            with self._lock:
                overdue = [one for one in self._waiting.values() if one.since_s < before]
            for one in overdue:
                one.timed_out = True
                one.context.cancel()


_RESERVED: Final = 8
"""One eighth of the threads, and of the pending calls, is reserved: a caller that has the rest gets none of it."""


class FairPool(ThreadPoolExecutor):
    """A thread pool for gRPC's calls, shared fairly by token or peer: the next is for the caller that has the fewest.

    `pending` counts unfinished calls.

    Args:
        threads: calls that run at once.
        most: calls that may be pending; one caller may have seven eighths of them.
    """

    def __init__(self, threads: int, most: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self.pending = 0
        self._most_of_one = most - most // _RESERVED
        self._pending_of: Counter[Hashable] = Counter()
        self._refusals = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-busy")
        self._local = local()
        self._lock = Lock()
        self._calls: FewestFirst[tuple[Future[Any], Callable[[], Any]]] = FewestFirst(
            max(1, threads - threads // _RESERVED)
        )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call."""
        future: Future[Any] = Future()
        caller = caller_of(args)
        with self._lock:
            too_many = self._pending_of[caller] >= self._most_of_one
            if not too_many:
                self.pending += 1
                self._pending_of[caller] += 1
                self._calls.put(caller, (future, lambda: fn(*args, **kwargs)))
        if too_many:
            return self._refusals.submit(self._refuse, fn, args, kwargs)
        super().submit(self._run)
        return future

    @property
    def refusing(self) -> bool:
        """Return whether the call in this thread must be refused: its caller has too many."""
        return getattr(self._local, "refusing", False)

    def _refuse(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._local.refusing = True
        return fn(*args, **kwargs)

    def _run(self) -> None:
        """Run the next call, then calls that waited because their caller had too many threads."""
        while True:
            with self._lock:
                found = self._calls.take()
            if found is None:
                return
            caller, (future, call) = found
            try:
                if future.set_running_or_notify_cancel():
                    _complete(future, call)
            finally:
                with self._lock:
                    self.pending -= 1
                    self._pending_of[caller] -= 1
                    if not self._pending_of[caller]:
                        del self._pending_of[caller]
                    self._calls.done(caller)
            del found, future, call


def _complete(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  handed to gRPC
        future.set_exception(error)
    else:
        future.set_result(result)


def caller_of(arguments: tuple[Any, ...]) -> Hashable:
    """Return the token or the peer of a call, from the arguments that gRPC submits; None if both are unknown.

    gRPC passes its event with the call: before the call has a thread, peer and metadata are nowhere else.
    """
    for one in arguments:
        peer, metadata = getattr(getattr(one, "call", None), "peer", None), getattr(one, "invocation_metadata", None)
        if peer is not None and metadata is not None:
            token = next((value for key, value in metadata if key == "authorization"), None)
            return token or peer_of(peer_host(peer().decode()))
    return None


EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
MAX_METADATA_BYTES: Final = 16 * 1024
CONNECTION_AGE_S: Final = 3600
"""A connection of this age must reconnect, so that certificates are checked again."""
_OTLP_SERVICES: Final = "/opentelemetry.proto.collector."
_REFUSALS_AT_ONCE: Final = 1024
_IDENTITY_AND_GZIP: Final = 0b101
"""A bit set of gRPC's compression algorithms."""
_log = logging.getLogger(__name__)


class GrpcReceiver:
    """The gRPC receiver.

    Args:
        address: where to listen; port 0 lets the system pick one.
        accept: takes the bytes of an `ExportTraceServiceRequest` and its sender, and returns those of the
            response, or raises a `RefusalError` or `DecodeError`. It is called from several threads.
        limits: of messages, connections, and concurrent exports.
        tokens: an export's `authorization` metadata must hold one of them; None: it need not.
        certificates: of TLS; None: plain text.
        refused: counts the exports refused here.
    """

    def __init__(
        self,
        address: Address,
        accept: Accept,
        *,
        limits: Limits | None = None,
        tokens: KnownTokens | None = None,
        certificates: GrpcCertificates | None = None,
        refused: RefusalCounts | None = None,
    ) -> None:
        limits = Limits() if limits is None else limits
        self._address = address
        self._accept = accept
        self._certificates = certificates
        self._refused = RefusalCounts() if refused is None else refused
        most = limits.concurrent_exports + limits.queued_exports
        self._exports = FairPool(limits.concurrent_exports, most, "otlp-grpc")
        self._message_bytes = limits.message_bytes
        self._tokens = tokens
        self._timeouts = MessageTimeouts(limits.body_s, lambda: self._exports.pending > limits.concurrent_exports)
        self._watch = ConnectionWatch(limits)
        handlers = _Handlers(self._export, tokens, lambda: self._exports.pending >= most, self._refused, self._watch)
        self._server: grpc.Server = grpc.server(
            self._exports,
            handlers=[handlers],
            options=_options(limits),
            # Above our own limit, whose answer says when to retry; gRPC's does not.
            maximum_concurrent_rpcs=most + _REFUSALS_AT_ONCE,
        )
        self._port: int | None = None

    @property
    def address(self) -> Address:
        """Return the address, with the port that the system picked."""
        return self._address if self._port is None else Address(self._address.host, self._port)

    @property
    def port(self) -> int:
        """Return the port; 0 before `bind` if the system picks it."""
        return self.address.port

    @property
    def pending(self) -> int:
        """Return how many exports are in hand or wait for a thread."""
        return self._exports.pending

    def bind(self) -> None:
        """Bind the port; connections wait until `start`.

        Raises:
            AddressError: it is in use, or the address is not this machine's.
        """
        if self._port is not None:
            return
        where = str(self._address)
        try:
            if self._certificates is None:
                port = self._server.add_insecure_port(where)
            else:
                port = self._server.add_secure_port(where, self._certificates.credentials())
        except RuntimeError as error:
            # gRPC gives no reason; a socket of our own does.
            listen(self._address, "--grpc").close()
            raise refused_address(self._address, "--grpc", OSError(str(error))) from error
        self._port = port

    def start(self) -> None:
        """Serve, in threads of its own; bind first if that was not done."""
        self.bind()
        self._timeouts.start()
        self._server.start()
        self._watch.start(self.port)

    def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new exports, and return when the others are answered, after `grace_s` seconds at the latest."""
        self._server.stop(grace_s).wait(grace_s + 1)
        self._watch.stop()
        self._timeouts.stop()
        self._exports.shutdown(wait=False)

    def _export(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        # gRPC counts an RPC against its connection until the RPC is freed: no error may keep this frame alive.
        waiting = None
        try:
            self._check_connection(context)
            with self._timeouts.waiting(context) as waiting:
                raw = next(messages)
            if raw.startswith(GZIP_MAGIC):
                raw = gunzip(raw, self._message_bytes)
            return self._accept(raw, self._sender(context))
        except StopIteration:  # the client sent none, or gRPC has just refused it
            self._count_missed(waiting)
            refusal: RefusalError = BadRequestError("no message came")
            refusal.counted = True
        except grpc.RpcError as error:  # the client has left, or gRPC has refused its message
            error.__traceback__ = None
            self._count_missed(waiting)
            return b""
        except Exception as error:  # noqa: BLE001 - it is the answer to the client
            refusal = as_refusal(error).with_traceback(None)
            if isinstance(refusal, InternalError) and refusal is not error:  # else the service has logged it
                _log.exception("an export could not be accepted: this is a bug")
        self._refused.count(refusal)
        _refuse(refusal, messages, context)
        return None

    def _sender(self, context: grpc.ServicerContext) -> Sender:
        bearer = None
        if self._tokens is not None:
            bearer = self._tokens.check(v for k, v in context.invocation_metadata() if k == "authorization")
        return sender_of(peer_host(context.peer()), bearer)

    def _check_connection(self, context: grpc.ServicerContext) -> None:
        if not self._watch.established(context.peer()):
            refusal = UnavailableError("too many connections")
            refusal.counted = True  # a connection is refused, not an export
            raise refusal
        if self._exports.refusing:
            raise BusyError("too many exports at once")

    def _count_missed(self, waiting: PendingMessage | None) -> None:
        if waiting is not None and waiting.timed_out:
            self._refused.count(TooSlowError())
        else:
            self._refused.count_not_received()


class GrpcCertificates:
    """The certificates of the receiver; connections that begin after a `replace` get the new ones."""

    def __init__(self, pem: Pem) -> None:
        self._pem = pem

    def replace(self, pem: Pem) -> None:
        """Use these certificates from now on."""
        self._pem = pem

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that use the current certificates at each handshake."""
        used = self._pem

        def newer() -> grpc.ServerCertificateConfiguration | None:
            nonlocal used
            if used == self._pem:
                return None
            used = self._pem
            return _configuration(used)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(used), newer, require_client_authentication=used.client_ca is not None
        )


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.client_ca)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of an RPC by its headers, before the message is read: ours, or one that refuses."""

    def __init__(
        self,
        export: _Handler,
        tokens: KnownTokens | None,
        full: Callable[[], bool],
        refused: RefusalCounts,
        watch: ConnectionWatch,
    ) -> None:
        self._export = grpc.stream_unary_rpc_method_handler(export)
        self._tokens = tokens
        self._full = full
        self._refused = refused
        self._watch = watch
        self._refusals = ThreadPoolExecutor(1, thread_name_prefix="otlp-grpc-no")

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        try:
            if details.method != EXPORT and not details.method.startswith(_OTLP_SERVICES):
                return self._refusing(UnsupportedContentError("Method not found!"))  # gRPC's own words; not counted
            if self._tokens is not None:
                self._tokens.check(value for key, value in details.invocation_metadata if key == "authorization")
            if details.method != EXPORT:
                raise UnsupportedContentError("traces only: send metrics, logs and profiles elsewhere")
            if self._full():
                raise BusyError("too many exports at once")
        except RefusalError as refusal:
            self._refused.count(refusal)
            return self._refusing(refusal.with_traceback(None))
        return self._export

    def _refusing(self, refusal: RefusalError) -> grpc.RpcMethodHandler:
        def refuse(messages: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
            self._watch.established(context.peer())
            _refuse(refusal, messages, context)

        # A pool of its own: the threads of exports may all be in use.
        refuse.experimental_thread_pool = self._refusals  # type: ignore[attr-defined]
        return grpc.stream_unary_rpc_method_handler(refuse)


def _refuse(refusal: RefusalError, _messages: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
    details = status(refusal).SerializeToString()
    context.set_trailing_metadata((("grpc-status-details-bin", details),))
    context.abort(grpc.StatusCode[answer(refusal).grpc], str(refusal))
    raise AssertionError("abort raises")


def _options(limits: Limits) -> list[tuple[str, int]]:
    """Return gRPC's channel arguments; times are in ms."""
    return [
        # With it, a second collector on the port would get a share of the exports, unnoticed.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.per_message_decompression", 0),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_AND_GZIP),
        # Soft and hard limit are equal: between them gRPC refuses at random.
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_allowed_incoming_connections", accepted_connections(limits)),
        # Above our own limit: gRPC's refusal does not say when to retry.
        ("grpc.max_concurrent_streams", limits.concurrent_exports + limits.queued_exports + 1),
        # Up to the client's HTTP/2 settings, TLS included.
        ("grpc.server_handshake_timeout_ms", round(limits.header_s * 1000)),
        ("grpc.max_connection_idle_ms", round(limits.idle_connection_s * 1000)),
        ("grpc.max_connection_age_ms", CONNECTION_AGE_S * 1000),
        ("grpc.max_connection_age_grace_ms", round(limits.body_s * 1000)),
        # A ping finds peers that vanished; a peer that pings too often is disconnected.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 2),
    ]
