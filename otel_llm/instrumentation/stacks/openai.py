"""The OpenAI SDK: streamed chat completions and responses, sync and async, without changing what the caller gets.

`create` is the commit, of `Completions` and of `Responses`; both helpers `.stream()` call it. The rest is common to the
SDKs of this generator, see `sdk_stream`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from opentelemetry import context as otel_context

from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.suppressing import attempting, is_nested
from otel_llm.instrumentation.parse.sse_chunks import CHAT, RESPONSES
from otel_llm.instrumentation.parse.wires import AZURE, provider_of
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches
from otel_llm.instrumentation.request import request_builder
from otel_llm.instrumentation.request.suppression import is_suppressed
from otel_llm.instrumentation.request.wishes import wishes_of
from otel_llm.instrumentation.stacks import sdk_stream
from otel_llm.instrumentation.stacks.sdk_stream import RAW_RESPONSE_HEADER, Call
from otel_llm.instrumentation.stacks.stack import StackInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.instrumentation.parse.sse_chunks import Api


class OpenAIInstrumentor(StackInstrumentor):
    """The hooks that record the token times of the streams of the `openai` package."""

    stack: ClassVar[str] = "openai"
    package: ClassVar[str] = "openai"
    requires: ClassVar[tuple[str, ...]] = ("openai >= 1.0, < 4",)

    def _patch(self) -> Patches:
        from openai import AsyncStream, Stream
        from openai._base_client import BaseClient
        from openai.resources.chat.completions import AsyncCompletions, Completions

        patches = Patches()
        patches.replace(Completions, "create", _create(CHAT))
        patches.replace(AsyncCompletions, "create", _create_async(CHAT))
        if find_spec("openai.resources.responses") is not None:  # since 1.66
            from openai.resources.responses import AsyncResponses, Responses

            patches.replace(Responses, "create", _create(RESPONSES))
            patches.replace(AsyncResponses, "create", _create_async(RESPONSES))
        patches.replace(BaseClient, "_build_request", sdk_stream.build_request(_is_ours))
        patches.replace(Stream, "__iter__", sdk_stream.watched)
        patches.replace(AsyncStream, "__aiter__", sdk_stream.watched)
        return patches


def _is_ours(options: Any) -> bool:
    return bool(options.url.endswith(("/chat/completions", "/responses")))


def _create(api: Api) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        def create(self: Any, *args: Any, **kwargs: Any) -> Any:
            call = _commit(self, kwargs, api)
            if call is None:
                with attempting(kwargs.get("model")):
                    return original(self, *args, **kwargs)
            with sdk_stream.calling(call):
                return call.returned(original(self, *args, **kwargs))

        return create

    return replacement


def _create_async(api: Api) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        async def awaited(self: Any, kwargs: dict[str, Any], made: Any) -> Any:
            call = _commit(self, kwargs, api)
            if call is None:
                with attempting(kwargs.get("model")):
                    return await made
            with sdk_stream.calling(call):
                return call.returned(await made)

        def create(self: Any, *args: Any, **kwargs: Any) -> Any:
            # As in the SDK: arguments are checked by the call, the request begins when its result is awaited.
            return awaited(self, kwargs, original(self, *args, **kwargs))

        return create

    return replacement


def _commit(resource: Any, kwargs: dict[str, Any], api: Api) -> Call | None:
    """Return the call of a streamed reply, None for one that is not recorded."""
    try:
        running = runtime.running()
        if running is None or kwargs.get("stream") is not True or is_nested() or is_suppressed(running, "openai"):
            return None
        url = resource._client.base_url
        headers = kwargs.get("extra_headers") or {}
        request = request_builder.by_client(
            running,
            otel_context.get_current(),
            operation=api.operation,
            model=kwargs.get("model"),
            provider=AZURE if "Azure" in type(resource._client).__name__ else provider_of(api.provider, url.host),
            scheme=url.scheme,
            host=url.host,
            port=url.port,
            wishes=wishes_of(kwargs),
            stack="openai",
        )
        recording = Recording(running, request, api.reader())
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None
    return Call(recording, api, kwargs.get("model"), raw=RAW_RESPONSE_HEADER in headers)
