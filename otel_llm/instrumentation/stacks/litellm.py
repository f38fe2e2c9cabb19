"""LiteLLM: `litellm.completion` and `acompletion` with `stream=True`, for all of its providers.

Hooked when the application imports litellm, which we never do. The two functions are the commit; their
`CustomStreamWrapper` stays the same object, with a class that sees its chunks. The SDKs and HTTP clients that litellm
calls do not record the request once more; our hooks of these put the trace into its headers, since not every provider
of litellm's takes headers from outside.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches, disguised
from otel_llm.instrumentation.request import propagation, request_builder
from otel_llm.instrumentation.request.wishes import wishes_of
from otel_llm.instrumentation.segments.chunks import ChunkReader
from otel_llm.instrumentation.stacks.stack import StackInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDING: Final = "_otel_llm_recording"
READING: Final = "_otel_llm_reading"
"""The added attributes of a recorded stream: its recording, and whether it is being read."""
PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""LiteLLM's name of a provider, and that of the semantic conventions, where they differ."""


class LiteLLMInstrumentor(StackInstrumentor):
    """The hooks that record the token times of streamed completions of the `litellm` package."""

    stack: ClassVar[str] = "litellm"
    package: ClassVar[str] = "litellm"
    requires: ClassVar[tuple[str, ...]] = ("litellm >= 1.95, != 1.107.*, < 2",)

    def _patch(self) -> Patches:
        import litellm
        from litellm import main

        patches = Patches()
        for module in (litellm, main):
            patches.replace(module, "completion", _completion)
            patches.replace(module, "acompletion", _acompletion)
        return patches


def _completion(original: Callable[..., Any]) -> Callable[..., Any]:
    def completion(*args: Any, **kwargs: Any) -> Any:
        # `acompletion` calls this in a thread of its own, where its cover is seen as well.
        recording = _commit(args, kwargs)
        if recording is None:
            return original(*args, **kwargs)
        try:
            with propagation.covering(recording):
                stream = original(*args, **kwargs)
        except BaseException as error:
            recording.failed(error)
            raise
        _adopt(recording, stream)
        return stream

    return completion


def _acompletion(original: Callable[..., Any]) -> Callable[..., Any]:
    async def acompletion(*args: Any, **kwargs: Any) -> Any:
        recording = _commit(args, kwargs)
        if recording is None:
            return await original(*args, **kwargs)
        try:
            with propagation.covering(recording):
                stream = await original(*args, **kwargs)
        except BaseException as error:
            recording.failed(error)
            raise
        _adopt(recording, stream)
        return stream

    return acompletion


def _commit(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording | None:
    """Return the recording of a streamed completion, None for one that is not recorded."""
    try:
        running = runtime.running()
        if (
            running is None
            or kwargs.get("stream") is not True
            or kwargs.get("text_completion") is True  # a stream of another kind, recorded by its sender's hook
            or propagation.is_covered()
            or not is_instrumentation_enabled()
        ):
            return None
        model = kwargs.get("model", args[0] if args else None)
        model = model if isinstance(model, str) else None
        provider = kwargs.get("custom_llm_provider") or (
            (model or "").partition("/")[0] if "/" in (model or "") else None
        )
        address = urlsplit(str(kwargs.get("api_base") or kwargs.get("base_url") or ""))
        context = otel_context.get_current()
        request = request_builder.by_client(
            running,
            context,
            operation="chat",
            model=model,
            provider=PROVIDERS.get(provider, provider) if provider else None,
            scheme=address.scheme,
            host=address.hostname,
            port=address.port,
            wishes=wishes_of(kwargs),
            says_complete=False,
            stack="litellm",
        )
        recording = Recording(running, request, ChunkReader())
        recording.announce(context)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None
    return recording


def _adopt(recording: Recording, stream: Any) -> None:
    try:
        from litellm import CustomStreamWrapper

        if isinstance(stream, CustomStreamWrapper):
            stream_type: Any = type(stream)
            recording.opened(stream, None)
            setattr(stream, RECORDING, recording)
            stream.__class__ = _seen(stream_type)
        else:  # the whole reply at once, as from a cache: there are no times
            recording.exhausted()
    except Exception as bug:  # noqa: BLE001
        recording.broken(bug)


def _closing(stream: Any) -> None:
    if not stream.__dict__.get(READING):  # at an error it closes itself, and then raises the error
        stream.__dict__[RECORDING].closed()


def _take(recording: Recording, chunk: Any) -> None:
    try:
        now_ns = recording.clock_ns()
        reader = recording.reader
        size = reader.plain_size(chunk) if reader.plain else 0
        recording.append((now_ns, size or reader(chunk)))
    except Exception as bug:  # noqa: BLE001
        recording.broken(bug)


@functools.lru_cache(maxsize=64)
def _seen(stream_type: Any) -> Any:
    """Return a stream's class that sees its chunks, and is otherwise the original class."""

    class Seen(stream_type):  # type: ignore[misc]
        def __next__(self) -> Any:
            recording = self.__dict__[RECORDING]
            self.__dict__[READING] = True
            try:
                if self.completion_stream is None:  # the request is sent with the first chunk
                    with propagation.covering(recording):
                        chunk = super().__next__()
                else:
                    chunk = super().__next__()
            except StopIteration:
                recording.exhausted()
                raise
            except BaseException as error:
                recording.failed(error)
                raise
            finally:
                self.__dict__[READING] = False
            _take(recording, chunk)
            return chunk

        async def __anext__(self) -> Any:
            recording = self.__dict__[RECORDING]
            self.__dict__[READING] = True
            try:
                if self.completion_stream is None:
                    with propagation.covering(recording):
                        chunk = await super().__anext__()
                else:
                    chunk = await super().__anext__()
            except StopAsyncIteration:
                recording.exhausted()
                raise
            except BaseException as error:
                recording.failed(error)
                raise
            finally:
                self.__dict__[READING] = False
            _take(recording, chunk)
            return chunk

        def close(self) -> Any:
            _closing(self)
            return super().close()

        async def aclose(self) -> Any:
            _closing(self)
            return await super().aclose()

    return disguised(Seen, stream_type, only_where_theirs=("close", "aclose"))
