"""The Anthropic SDK: streamed messages, sync and async, without changing what the caller gets.

`request` of the client is the commit: all of `create(stream=True)`, `.stream()` and their beta twins call it, on
Bedrock and Vertex too, where only later the URL and the body become theirs. Other instrumentations wrap `request`, and
suppress inside; `post` above it shows what the application wants. The SDK has spans of its own; if the
application has a TracerProvider, ours are their children. The rest is in `sdk_stream`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from opentelemetry import context as otel_context

from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.suppressing import attempting, is_nested
from otel_llm.instrumentation.parse.sse_chunks import MESSAGES
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches
from otel_llm.instrumentation.request import request_builder
from otel_llm.instrumentation.request.suppression import is_suppressed, requesting
from otel_llm.instrumentation.request.wishes import wishes_of
from otel_llm.instrumentation.stacks import sdk_stream
from otel_llm.instrumentation.stacks.sdk_stream import RAW_RESPONSE_HEADER, Call
from otel_llm.instrumentation.stacks.stack import StackInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable

PATH: Final = "/v1/messages"
PROVIDERS: Final = (("Bedrock", "aws.bedrock"), ("Vertex", "gcp.vertex_ai"), ("Foundry", "azure.ai.inference"))
"""A part of a client's class name, and its provider."""


class AnthropicInstrumentor(StackInstrumentor):
    """The hooks that record the token times of the streams of the `anthropic` package."""

    stack: ClassVar[str] = "anthropic"
    package: ClassVar[str] = "anthropic"
    requires: ClassVar[tuple[str, ...]] = ("anthropic >= 0.50, < 3",)

    def _patch(self) -> Patches:
        from anthropic import AsyncStream, Stream
        from anthropic._base_client import AsyncAPIClient, BaseClient, SyncAPIClient

        patches = Patches()
        patches.replace(SyncAPIClient, "post", _post)
        patches.replace(AsyncAPIClient, "post", _post_async)
        patches.replace(SyncAPIClient, "request", _request)
        patches.replace(AsyncAPIClient, "request", _request_async)
        patches.replace(BaseClient, "_build_request", sdk_stream.build_request(_is_ours))
        patches.replace(Stream, "__iter__", sdk_stream.watched)
        patches.replace(AsyncStream, "__aiter__", sdk_stream.watched)
        return patches


def _is_ours(options: Any) -> bool:  # noqa: ARG001
    # Bedrock and Vertex have set their own URL there; another request made meanwhile has its own `request`.
    return True


def _post(original: Callable[..., Any]) -> Callable[..., Any]:
    def post(self: Any, *args: Any, **kwargs: Any) -> Any:
        with requesting():
            return original(self, *args, **kwargs)

    return post


def _post_async(original: Callable[..., Any]) -> Callable[..., Any]:
    async def post(self: Any, *args: Any, **kwargs: Any) -> Any:
        with requesting():
            return await original(self, *args, **kwargs)

    return post


def _request(original: Callable[..., Any]) -> Callable[..., Any]:
    def request(self: Any, cast_to: Any, options: Any, **kwargs: Any) -> Any:
        call = _commit(self, options, kwargs)
        if call is None:
            with sdk_stream.apart(), attempting(_body(options).get("model")):
                return original(self, cast_to, options, **kwargs)
        with sdk_stream.calling(call):
            return call.returned(original(self, cast_to, options, **kwargs))

    return request


def _request_async(original: Callable[..., Any]) -> Callable[..., Any]:
    async def request(self: Any, cast_to: Any, options: Any, **kwargs: Any) -> Any:
        call = _commit(self, options, kwargs)
        if call is None:
            with sdk_stream.apart(), attempting(_body(options).get("model")):
                return await original(self, cast_to, options, **kwargs)
        with sdk_stream.calling(call):
            return call.returned(await original(self, cast_to, options, **kwargs))

    return request


def _body(options: Any) -> dict[str, Any]:
    body = getattr(options, "json_data", None)
    return body if isinstance(body, dict) else {}


def _commit(client: Any, options: Any, kwargs: dict[str, Any]) -> Call | None:
    """Return the call of a streamed message, None for a request that is not recorded."""
    try:
        running = runtime.running()
        if running is None or kwargs.get("stream") is not True or options.url.partition("?")[0] != PATH:
            return None
        if is_nested() or is_suppressed(running, "anthropic"):
            return None
        body = _body(options)
        name = type(client).__name__
        url = client.base_url
        request = request_builder.by_client(
            running,
            otel_context.get_current(),
            operation=MESSAGES.operation,
            model=body.get("model"),
            provider=next((who for part, who in PROVIDERS if part in name), MESSAGES.provider),
            scheme=url.scheme,
            host=url.host,
            port=url.port,
            wishes=wishes_of(body),
            stack="anthropic",
        )
        headers = options.headers if isinstance(options.headers, dict) else {}
        recording = Recording(running, request, MESSAGES.reader())
        return Call(recording, MESSAGES, body.get("model"), raw=RAW_RESPONSE_HEADER in headers)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None
