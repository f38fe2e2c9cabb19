"""Amazon Bedrock over botocore (boto3) and aiobotocore: `converse_stream`, `invoke_model_with_response_stream`.

`_make_api_call` is the commit: all methods of all clients call it. The event stream in its response stays the same
object, with a class that sees the events of its iterator. `Endpoint.prepare_request` puts the trace into the headers:
it runs after the signing, so the signature holds even if a proxy changes these headers.
"""

from __future__ import annotations

import contextlib
import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from opentelemetry import context as otel_context

from otel_llm.instrumentation.core.reading import recorded, recorded_async
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.suppressing import is_nested, suppressing
from otel_llm.instrumentation.parse.bedrock import ConverseReader, InvokeReader
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches, disguised
from otel_llm.instrumentation.request import request_builder
from otel_llm.instrumentation.request.propagation import attach, detach, inject
from otel_llm.instrumentation.request.suppression import is_suppressed
from otel_llm.instrumentation.segments.outcomes import ABANDONED, DISCONNECTED, ERROR
from otel_llm.instrumentation.segments.statements import text_of
from otel_llm.instrumentation.stacks.stack import StackInstrumentor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from otel_llm.instrumentation.request.propagation import Attached

SERVICE: Final = "bedrock-runtime"
STREAMS: Final[dict[str, tuple[str, Callable[[], ConverseReader | InvokeReader]]]] = {
    "ConverseStream": ("stream", ConverseReader),
    "InvokeModelWithResponseStream": ("body", InvokeReader),
}
"""By operation: the response's member with the event stream, and the reader of its events."""
PATHS: Final = ("/converse-stream", "/invoke-with-response-stream")
"""The ends of these operations' paths: credentials may be fetched meanwhile, by another operation."""
RECORDING: Final = "_otel_llm_recording"
"""The one added attribute of a recorded event stream."""


class BotocoreInstrumentor(StackInstrumentor):
    """The hooks that record the token times of Bedrock's streams that are read with `botocore`."""

    stack: ClassVar[str] = "botocore"
    package: ClassVar[str] = "botocore"
    requires: ClassVar[tuple[str, ...]] = ("botocore >= 1.35, < 2",)

    def _patch(self) -> Patches:
        from botocore.client import BaseClient
        from botocore.endpoint import Endpoint

        return _patch(BaseClient, Endpoint, _make_api_call)


class AiobotocoreInstrumentor(StackInstrumentor):
    """The hooks that record the token times of Bedrock's streams that are read with `aiobotocore`."""

    stack: ClassVar[str] = "aiobotocore"
    package: ClassVar[str] = "aiobotocore"
    requires: ClassVar[tuple[str, ...]] = ("aiobotocore >= 2.15, < 4",)

    def _patch(self) -> Patches:
        from aiobotocore.client import AioBaseClient
        from aiobotocore.endpoint import AioEndpoint

        return _patch(AioBaseClient, AioEndpoint, _make_api_call_async)


def _patch(client: type, endpoint: type, make_api_call: Callable[[Any], Callable[..., Any]]) -> Patches:
    patches = Patches()
    patches.replace(client, "_make_api_call", make_api_call)
    patches.replace(endpoint, "prepare_request", _prepare_request)
    return patches


class _Call:
    """A call of the client until its event stream is there."""

    __slots__ = ("attached", "recording")

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.attached: Attached | None = None


_pending: Final[ContextVar[_Call | None]] = ContextVar("otel_llm_bedrock", default=None)
"""The call that is being made."""


def _make_api_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def _make_api_call(self: Any, operation_name: str, api_params: Any) -> Any:
        call = _commit(self, operation_name, api_params, BotocoreInstrumentor.stack)
        if call is None:
            return original(self, operation_name, api_params)
        with _calling(call):
            response = original(self, operation_name, api_params)
        _adopt(call.recording, response, operation_name)
        return response

    return _make_api_call


def _make_api_call_async(original: Callable[..., Any]) -> Callable[..., Any]:
    async def _make_api_call(self: Any, operation_name: str, api_params: Any) -> Any:
        call = _commit(self, operation_name, api_params, AiobotocoreInstrumentor.stack)
        if call is None:
            return await original(self, operation_name, api_params)
        with _calling(call):
            response = await original(self, operation_name, api_params)
        _adopt(call.recording, response, operation_name)
        return response

    return _make_api_call


def _commit(client: Any, operation_name: str, api_params: Any, stack: str) -> _Call | None:
    """Return the call of a streamed reply, None for one that is not recorded."""
    if operation_name not in STREAMS:
        return None
    try:
        running = runtime.running()
        if running is None or is_nested() or client.meta.service_model.service_name != SERVICE:
            return None
        if is_suppressed(running, stack):
            return None
        url = urlsplit(client.meta.endpoint_url)
        request = request_builder.by_client(
            running,
            otel_context.get_current(),
            operation="chat",
            model=api_params.get("modelId"),
            provider="aws.bedrock",
            scheme=url.scheme,
            host=url.hostname,
            port=url.port,
            stack=stack,
        )
        reader = STREAMS[operation_name][1]()
        recording = Recording(running, request, reader)
        if isinstance(reader, InvokeReader):
            reader.on_unknown = functools.partial(_unknown, recording, api_params.get("modelId"))
        return _Call(recording)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None


@contextlib.contextmanager
def _calling(call: _Call) -> Iterator[None]:
    """Make the client's call inside: its error is the request's end, and no inner hook records it again."""
    token = _pending.set(call)
    try:
        with suppressing():
            yield
    except BaseException as error:
        _failed(call.recording, error)  # nothing if no request was sent: wrong arguments, or no credentials
        raise
    finally:
        detach(call.attached)
        # A dropped coroutine is closed in the context of the garbage collector.
        with contextlib.suppress(ValueError):
            _pending.reset(token)


def _prepare_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def prepare_request(self: Any, request: Any) -> Any:
        call = _pending.get()
        if call is not None and request.url.endswith(PATHS):
            # The innermost place: another instrumentation's span for the call is current here.
            call.recording.announce(otel_context.get_current())
            inject(call.recording, request.headers)
            call.attached = call.attached or attach(call.recording)
        return original(self, request)

    return prepare_request


def _adopt(recording: Recording, response: Any, operation_name: str) -> None:
    try:
        if not recording.announced:  # no request was sent: a stub answered
            return
        stream = response.get(STREAMS[operation_name][0])
        if stream is None:
            recording.ended(ABANDONED)
            return
        stream_type: Any = type(stream)
        stream.__class__ = _seen(stream_type)
        setattr(stream, RECORDING, recording)
        recording.opened(stream, None)
    except Exception as bug:  # noqa: BLE001
        recording.broken(bug)


@functools.lru_cache(maxsize=8)
def _seen(stream_type: Any) -> Any:
    """Return an event stream's class that sees its events, and is otherwise the original class."""

    class Seen(stream_type):  # type: ignore[misc]
        def __iter__(self) -> Any:
            recording: Recording = getattr(self, RECORDING)
            loop = recorded(_events(super().__iter__(), recording), recording)
            recording.entered(loop)
            return loop

        def __aiter__(self) -> Any:
            recording: Recording = getattr(self, RECORDING)
            loop = recorded_async(_events_async(super().__aiter__(), recording), recording)
            recording.entered(loop)
            return loop

        def close(self) -> Any:
            getattr(self, RECORDING).closed()
            return super().close()

    if hasattr(stream_type, "__aiter__"):
        del Seen.__iter__
    return disguised(Seen, stream_type, only_where_theirs=("__aiter__",))


# Both end a recording as `recorded` cannot: a body that ends before the reply was cut off, and an error in the stream
# has a code.


def _events(inner: Iterator[Any], recording: Recording) -> Iterator[Any]:
    try:
        yield from inner
    except Exception as error:
        _failed(recording, error)
        raise
    recording.ended(DISCONNECTED)


async def _events_async(inner: AsyncIterator[Any], recording: Recording) -> AsyncIterator[Any]:
    try:
        async for event in inner:
            yield event
    except Exception as error:
        _failed(recording, error)
        raise
    recording.ended(DISCONNECTED)


def _failed(recording: Recording, error: BaseException) -> None:
    """End a recording by an error of Bedrock's, named by its code, or by any other."""
    response = getattr(error, "response", None)
    reported = response.get("Error") if isinstance(response, dict) else None
    code = text_of(reported.get("Code")) if isinstance(reported, dict) else None
    if code is not None:
        recording.ended(ERROR, code)
    else:
        recording.failed(error)


unknown_models: Final[set[object]] = set()
"""The models whose chunks were not known: each is one warning."""
MOST_UNKNOWN: Final = 100


def _unknown(recording: Recording, model: object) -> None:
    """Stop recording a stream of a model with unknown chunks; warn once for each model."""
    recording.give_up()
    running = runtime.running()
    if running is None or model in unknown_models or len(unknown_models) >= MOST_UNKNOWN:
        return
    words = "otel_llm does not know the chunks of %s and does not record them; converse_stream it does"
    if running.log.warning(words, model):
        unknown_models.add(model)
