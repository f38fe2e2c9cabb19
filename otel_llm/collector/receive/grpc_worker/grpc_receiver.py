"""OTLP over gRPC: take the bytes of TraceService/Export, hand them on, answer.

The handler is generic and gets raw bytes: decoding belongs to whoever accepts. gRPC refuses messages larger than the
limit (RESOURCE_EXHAUSTED, without RetryInfo: they would never fit); gzip is undone here, so that what grows as a bomb
does is refused while it grows. Other compression is refused by gRPC (UNIMPLEMENTED, as the client learns). gRPC sees
one message as a stream of one, so that nobody's thread is taken who has not brought a token, and that a message which
does not come can be given up (CANCELLED).
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NoReturn

import grpc

from otel_llm.collector.config.settings import Limits
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
from otel_llm.collector.receive.grpc_worker.connection_limits import ConnectionWatch, let_in, peer_host
from otel_llm.collector.receive.grpc_worker.grpc_pool import FairPool
from otel_llm.collector.receive.grpc_worker.message_timeouts import MessagePatience, Waiting
from otel_llm.collector.receive.gunzip import GZIP_MAGIC, gunzip
from otel_llm.collector.receive.refusals import Refused
from otel_llm.collector.receive.senders import sender_of
from otel_llm.shared.errors import RefusalError, UnavailableError
from otel_llm.shared.web.address import Address, listen, refused_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.collector.receive.senders import Accept
    from otel_llm.shared.web.tls import Pem
    from otel_llm.shared.web.tokens import KnownTokens

    _Handler = Callable[[Iterator[bytes], grpc.ServicerContext], bytes]

EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
MAX_METADATA_BYTES: Final = 16 * 1024
CONNECTION_AGE_S: Final = 3600
"""A connection of this age is asked to begin anew, so that certificates are looked at again."""
_OTLP_SERVICES: Final = "/opentelemetry.proto.collector."
_REFUSALS_AT_ONCE: Final = 1024
_IDENTITY_AND_GZIP: Final = 0b101
"""Of gRPC's compression algorithms, by their number there."""
_log = logging.getLogger(__name__)


class GrpcReceiver:
    """The gRPC door.

    Args:
        address: where to listen; port 0 lets the system pick one.
        accept: takes the bytes of an `ExportTraceServiceRequest` and the number of its sender, and returns those of the
            response, or raises a `RefusalError` or `DecodeError`. It is called from several threads.
        limits: of messages, connections, and exports at once.
        tokens: what exports must bring in their `authorization` metadata; None: nothing.
        certificates: of TLS; None: plain text.
        refused: counts the exports that are refused here.
    """

    def __init__(
        self,
        address: Address,
        accept: Accept,
        *,
        limits: Limits | None = None,
        tokens: KnownTokens | None = None,
        certificates: GrpcCertificates | None = None,
        refused: Refused | None = None,
    ) -> None:
        limits = Limits() if limits is None else limits
        self._address = address
        self._accept = accept
        self._certificates = certificates
        self._refused = Refused() if refused is None else refused
        most = limits.concurrent_exports + limits.queued_exports
        self._exports = FairPool(limits.concurrent_exports, most, "otlp-grpc")
        self._message_bytes = limits.message_bytes
        self._tokens = tokens
        self._patience = MessagePatience(limits.body_s, lambda: self._exports.pending > limits.concurrent_exports)
        self._watch = ConnectionWatch(limits)
        handlers = _Handlers(self._export, tokens, lambda: self._exports.pending >= most, self._refused, self._watch)
        self._server: grpc.Server = grpc.server(
            self._exports,
            handlers=[handlers],
            options=_options(limits),
            # Behind our own answer, which says when to come back: gRPC's says nothing but no.
            maximum_concurrent_rpcs=most + _REFUSALS_AT_ONCE,
        )
        self._port: int | None = None

    @property
    def address(self) -> Address:
        """Return where it listens, with the port that the system picked."""
        return self._address if self._port is None else Address(self._address.host, self._port)

    @property
    def port(self) -> int:
        """Return the port; 0 before `bind` where the system picks it."""
        return self.address.port

    def bind(self) -> None:
        """Take the port; connections wait until `start`.

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
            # gRPC does not say why; a socket of our own does.
            listen(self._address, "--grpc").close()
            raise refused_address(self._address, "--grpc", OSError(str(error))) from error
        self._port = port

    def start(self) -> None:
        """Bind, if that was not done, and serve in threads of its own."""
        self.bind()
        self._patience.start()
        self._server.start()
        self._watch.start(self.port)

    def stop(self, grace_s: float = 5.0) -> None:
        """Take no more exports, and return when those begun are answered, at the latest after `grace_s` seconds."""
        self._server.stop(grace_s).wait(grace_s + 1)
        self._watch.stop()
        self._patience.stop()
        self._exports.shutdown(wait=False)

    def _export(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        # gRPC counts an RPC against its connection until it is freed: no error may stay behind that holds this frame.
        waiting = None
        try:
            self._check_connection(context)
            with self._patience.waiting(context) as waiting:
                raw = next(messages)
            if raw.startswith(GZIP_MAGIC):
                raw = gunzip(raw, self._message_bytes)
            return self._accept(raw, self._sender(context))
        except StopIteration:  # so it looks as well, at times, when gRPC has just refused the message
            self._count_missed(waiting)
            refusal: RefusalError = BadRequestError("no message came")
            refusal.counted = True
        except grpc.RpcError as gone:  # the client is, or gRPC refused its message
            gone.__traceback__ = None
            self._count_missed(waiting)
            return b""
        except Exception as error:  # noqa: BLE001 - the client is always told something
            refusal = as_refusal(error).with_traceback(None)
            if isinstance(refusal, InternalError) and refusal is not error:  # else it was said where it happened
                _log.exception("an export could not be accepted: this is a bug")
        self._refused.count(refusal)
        _refuse(refusal, messages, context)
        return None

    def _sender(self, context: grpc.ServicerContext) -> int:
        token = None
        if self._tokens is not None:
            token = self._tokens.check(v for k, v in context.invocation_metadata() if k == "authorization")
        return sender_of(peer_host(context.peer()), token)

    def _check_connection(self, context: grpc.ServicerContext) -> None:
        if not self._watch.established(context.peer()):
            refusal = UnavailableError("too many connections")
            refusal.counted = True  # connections are not
            raise refusal
        if self._exports.refusing:
            raise BusyError("too many exports at once")

    def _count_missed(self, waiting: Waiting | None) -> None:
        if waiting is not None and waiting.given_up:
            self._refused.count(TooSlowError())
        else:
            self._refused.count_not_received()


class GrpcCertificates:
    """The certificates of the door; connections that begin after a `take` get the new ones."""

    def __init__(self, pem: Pem) -> None:
        self._pem = pem

    def take(self, pem: Pem) -> None:
        """Show these from now on."""
        self._pem = pem

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that look at each handshake whether there are newer ones."""
        told = self._pem

        def newer() -> grpc.ServerCertificateConfiguration | None:
            nonlocal told
            if told == self._pem:
                return None
            told = self._pem
            return _configuration(told)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(told), newer, require_client_authentication=told.client_ca is not None
        )


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.client_ca)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Find the handler of an RPC: ours, or one that says no; the headers have come, the message has not been read."""

    def __init__(
        self,
        export: _Handler,
        tokens: KnownTokens | None,
        full: Callable[[], bool],
        refused: Refused,
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
                return self._saying(UnsupportedContentError("Method not found!"))  # as gRPC itself; none is counted
            if self._tokens is not None:
                self._tokens.check(value for key, value in details.invocation_metadata if key == "authorization")
            if details.method != EXPORT:
                raise UnsupportedContentError("traces only: send metrics, logs and profiles elsewhere")
            if self._full():
                raise BusyError("too many exports at once")
        except RefusalError as refusal:
            self._refused.count(refusal)
            return self._saying(refusal.with_traceback(None))
        return self._export

    def _saying(self, refusal: RefusalError) -> grpc.RpcMethodHandler:
        def say(messages: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
            self._watch.established(context.peer())
            _refuse(refusal, messages, context)

        # Not behind those that are being exported: their threads may all be taken.
        say.experimental_thread_pool = self._refusals  # type: ignore[attr-defined]
        return grpc.stream_unary_rpc_method_handler(say)


def _refuse(refusal: RefusalError, _messages: Iterator[bytes], context: grpc.ServicerContext) -> NoReturn:
    details = status(refusal).SerializeToString()
    context.set_trailing_metadata((("grpc-status-details-bin", details),))
    context.abort(grpc.StatusCode[answer(refusal).grpc], str(refusal))
    raise AssertionError("abort raises")


def _options(limits: Limits) -> list[tuple[str, int]]:
    """Return gRPC's channel arguments; times are in ms."""
    return [
        # A second collector on the port would get a part of the exports and nobody would notice.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.per_message_decompression", 0),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_AND_GZIP),
        # Soft and hard limit are one: between two of them gRPC would refuse at random.
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_allowed_incoming_connections", let_in(limits)),
        # More on one connection are refused by gRPC itself, without saying when to come back.
        ("grpc.max_concurrent_streams", limits.concurrent_exports + limits.queued_exports + 1),
        # Up to the client's HTTP/2 settings, TLS included.
        ("grpc.server_handshake_timeout_ms", round(limits.header_s * 1000)),
        ("grpc.max_connection_idle_ms", round(limits.idle_connection_s * 1000)),
        ("grpc.max_connection_age_ms", CONNECTION_AGE_S * 1000),
        ("grpc.max_connection_age_grace_ms", round(limits.body_s * 1000)),
        # A peer that is gone without a word is noticed by a ping; one that pings too often is sent away.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 2),
    ]
