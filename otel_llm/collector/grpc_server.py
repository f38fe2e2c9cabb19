"""OTLP over gRPC: take the bytes of TraceService/Export, hand them on, answer.

The handler is generic and gets raw bytes: decoding belongs to whoever accepts. gRPC itself undoes gzip, within the
message limit, and refuses larger messages (RESOURCE_EXHAUSTED, without RetryInfo: they would never fit).
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NoReturn

import grpc

from otel_llm.collector.address import Address, listen, refused_address
from otel_llm.collector.errors import InternalError, answer, as_refusal, status

if TYPE_CHECKING:
    from collections.abc import Callable

EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
MAX_MESSAGE_BYTES: Final = 16 * 2**20
"""Four times what gRPC and the OpenTelemetry Collector take by default: 8,192 spans of the latter's batches fit."""
_OTLP_SERVICES: Final = "/opentelemetry.proto.collector."
_log = logging.getLogger(__name__)


class GrpcReceiver:
    """The gRPC door.

    Args:
        address: where to listen; port 0 lets the system pick one.
        accept: takes the bytes of an `ExportTraceServiceRequest` and returns those of the response, or raises a
            `RefusalError` or `DecodeError`. It is called from several threads.
        max_message_bytes: larger messages are refused, compressed or not.
        threads: exports handled at once; the others wait.
    """

    def __init__(
        self,
        address: Address,
        accept: Callable[[bytes], bytes],
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        threads: int = 4,
    ) -> None:
        self._address = address
        self._accept = accept
        self._server: grpc.Server = grpc.server(
            ThreadPoolExecutor(threads, thread_name_prefix="otlp-grpc"),
            handlers=[_Handlers(self._export)],
            options=[
                # A second collector on the port would get a part of the exports and nobody would notice.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", max_message_bytes),
            ],
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
        try:
            port = self._server.add_insecure_port(str(self._address))
        except RuntimeError as error:
            # gRPC does not say why; a socket of our own does.
            listen(self._address, "--grpc").close()
            raise refused_address(self._address, "--grpc", OSError(str(error))) from error
        self._port = port

    def start(self) -> None:
        """Bind, if that was not done, and serve in threads of its own."""
        self.bind()
        self._server.start()

    def stop(self, grace_s: float = 5.0) -> None:
        """Take no more exports, and return when those begun are answered, at the latest after `grace_s` seconds."""
        self._server.stop(grace_s).wait()

    def _export(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return self._accept(raw)
        except Exception as error:  # noqa: BLE001 - the client is always told something
            refusal = as_refusal(error)
            if isinstance(refusal, InternalError):
                _log.exception("an export could not be accepted: this is a bug")
        details = status(refusal).SerializeToString()
        context.set_trailing_metadata((("grpc-status-details-bin", details),))
        _abort(context, answer(refusal).grpc, str(refusal))
        return None


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Find the handler of a method: ours, and one that says no to the other signals."""

    def __init__(self, export: Callable[[bytes, grpc.ServicerContext], bytes]) -> None:
        self._export = grpc.unary_unary_rpc_method_handler(export)
        self._other_signal = grpc.unary_unary_rpc_method_handler(_refuse_signal)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method == EXPORT:
            return self._export
        if details.method.startswith(_OTLP_SERVICES):
            return self._other_signal
        return None  # gRPC answers UNIMPLEMENTED


def _refuse_signal(_raw: bytes, context: grpc.ServicerContext) -> NoReturn:
    _abort(context, "UNIMPLEMENTED", "traces only: send metrics, logs and profiles elsewhere")


def _abort(context: grpc.ServicerContext, code: str, message: str) -> NoReturn:
    context.abort(grpc.StatusCode[code], message)
    raise AssertionError("abort raises")
