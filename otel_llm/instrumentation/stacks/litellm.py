"""LiteLLM: `completion` and `acompletion` with `stream=True`, for all of its providers, and those of `litellm.Router`.

Hooked when the application imports litellm, which we never do. The outermost call is the commit; its
`CustomStreamWrapper` stays the same object, with a class that sees its chunks. Calls that it makes are its attempts:
the Router makes one for each retry and each fallback, also while its stream is read. The SDKs and HTTP clients that
litellm calls do not record the request once more; our hooks of these put the trace into its headers, since not every
provider of litellm's takes headers from outside.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

import wrapt
from opentelemetry import context as otel_context

from otel_llm import semconv
from otel_llm.export import host_log
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.suppressing import attempt_failed, attempting, carrier, is_nested, suppressing
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches, disguised
from otel_llm.instrumentation.request import request_builder
from otel_llm.instrumentation.request.suppression import is_suppressed
from otel_llm.instrumentation.request.wishes import wishes_of
from otel_llm.instrumentation.segments.chunks import ChunkReader
from otel_llm.instrumentation.segments.outcomes import ERROR, error_type
from otel_llm.instrumentation.stacks.stack import StackInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.process.runtime import Runtime

RECORDING: Final = "_otel_llm_recording"
READING: Final = "_otel_llm_reading"
ROUTED: Final = "_otel_llm_routed"
"""The added attributes of a recorded stream: its recording, whether it is being read, whether it is the Router's."""
ATTEMPT: Final = "_otel_llm_attempt"
"""The one added attribute of an attempt's stream: the attempt."""
ROUTERS: Final = {"litellm.router": "Router", "litellm.router_rust.core": "RustCore"}
"""By module: the class with the Router's methods; from 1.110 on `Router` passes all calls on to the second one."""
PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""LiteLLM's name of a provider, and that of the semantic conventions, if they differ."""


class LiteLLMInstrumentor(StackInstrumentor):
    """The hooks that record the token times of streamed completions of the `litellm` package."""

    stack: ClassVar[str] = "litellm"
    package: ClassVar[str] = "litellm"
    requires: ClassVar[tuple[str, ...]] = ("litellm >= 1.95, != 1.107.*, < 2",)

    _routers_awaited: bool = False

    def _patch(self) -> Patches:
        import litellm
        from litellm import main

        patches = Patches()
        for module in (litellm, main):
            patches.replace(module, "completion", functools.partial(_completion, 0))
            patches.replace(module, "acompletion", functools.partial(_acompletion, 0))
        for name in ROUTERS:
            if name in sys.modules:
                _hook_router(patches, sys.modules[name])
            elif not self._routers_awaited:  # an import hook cannot be removed: once a process
                wrapt.register_post_import_hook(self._router_imported, name)
        type(self)._routers_awaited = True
        return patches

    def _router_imported(self, module: Any) -> None:
        if self._patches is None:
            return
        try:
            _hook_router(self._patches, module)
        except Exception as moved:  # noqa: BLE001
            host_log.warning("otel_llm does not know this litellm.Router and records each of its attempts: %s", moved)


def _hook_router(patches: Patches, module: Any) -> None:
    router = getattr(module, ROUTERS[module.__name__])
    if "completion" in vars(router):
        patches.replace(router, "completion", functools.partial(_completion, 1))
        patches.replace(router, "acompletion", functools.partial(_acompletion, 1))


def _completion(bound: int, original: Callable[..., Any]) -> Callable[..., Any]:
    def completion(*args: Any, **kwargs: Any) -> Any:
        # `acompletion` calls this in a thread of its own, where its suppression is seen as well.
        call = _commit(args[bound:], kwargs, routed=bool(bound))
        if call is None:
            return original(*args, **kwargs)
        with call.calling():
            stream = original(*args, **kwargs)
        call.adopt(stream)
        return stream

    return completion


def _acompletion(bound: int, original: Callable[..., Any]) -> Callable[..., Any]:
    async def acompletion(*args: Any, **kwargs: Any) -> Any:
        call = _commit(args[bound:], kwargs, routed=bool(bound))
        if call is None:
            return await original(*args, **kwargs)
        with call.calling():
            stream = await original(*args, **kwargs)
        call.adopt(stream)
        return stream

    return acompletion


def _commit(args: tuple[Any, ...], kwargs: dict[str, Any], *, routed: bool) -> _Call | _Attempt | None:
    """Return the call of a streamed completion, or of an attempt at one; None if it is not recorded."""
    try:
        running = runtime.running()
        if (
            running is None
            or kwargs.get("stream") is not True
            or kwargs.get("text_completion") is True  # a stream of another kind, recorded by its sender's hook
        ):
            return None
        model = kwargs.get("model", args[0] if args else None)
        model = model if isinstance(model, str) else None
        if is_nested():
            above = carrier()
            return None if above is None else _Attempt(above, model)
        if is_suppressed(running, "litellm"):
            return None
        return _Call(_recording(running, model, kwargs), model, routed=routed)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None


def _recording(running: Runtime, model: str | None, kwargs: dict[str, Any]) -> Recording:
    provider = kwargs.get("custom_llm_provider") or ((model or "").partition("/")[0] if "/" in (model or "") else None)
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
    return recording


class _Call:
    """A recorded call; `routed`: the Router's, which makes requests also while its stream is read."""

    def __init__(self, recording: Recording, model: str | None, *, routed: bool) -> None:
        self.recording = recording
        self._model = model
        self._routed = routed

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Make the call inside; its error is the request's end."""
        try:
            with suppressing(self.recording), attempting(self._model):
                yield
        except BaseException as error:
            self.recording.failed(error)
            raise

    def adopt(self, stream: Any) -> None:
        """Record the stream that the call returned."""
        recording = self.recording
        try:
            from litellm import CustomStreamWrapper

            if isinstance(stream, CustomStreamWrapper):
                stream_type: Any = type(stream)
                if stream.__dict__.pop(ATTEMPT, None) is not None:  # the Router returns its attempt's stream itself
                    stream_type = stream_type.__bases__[0]
                recording.opened(stream, None)
                setattr(stream, RECORDING, recording)
                setattr(stream, ROUTED, self._routed)
                stream.__class__ = _seen(stream_type)
                if self._routed:
                    recording.identify(_served(stream))
            else:  # the whole reply at once, as from a cache: there are no times
                recording.exhausted()
        except Exception as bug:  # noqa: BLE001
            recording.broken(bug)


class _Attempt:
    """A call that another recorded call makes."""

    def __init__(self, recording: Recording, model: str | None) -> None:
        self._recording = recording
        self._model = model

    def calling(self) -> contextlib.AbstractContextManager[None]:
        """Make the call inside."""
        return attempting(self._model)

    def adopt(self, stream: Any) -> None:
        """Watch the stream that the call returned for an error: another attempt may follow."""
        try:
            from litellm import CustomStreamWrapper

            if isinstance(stream, CustomStreamWrapper) and not {RECORDING, ATTEMPT} & stream.__dict__.keys():
                stream_type: Any = type(stream)
                setattr(stream, ATTEMPT, self)
                stream.__class__ = _tried(stream_type)
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)

    def failed(self, error: Exception) -> None:
        """Note that the stream raised an error; what litellm wraps for its Router counts as what it was."""
        cause = getattr(error, "original_exception", None)
        reported = error_type(cause if isinstance(cause, Exception) else error)
        attempt_failed(self._recording, reported, self._model)


def _served(stream: Any) -> dict[str, AttributeValue]:
    """Return the provider and the server that the Router chose."""
    hidden = getattr(stream, "_hidden_params", None) or {}
    provider = str(stream.custom_llm_provider or "") or None
    address = urlsplit(str(hidden.get("api_base") or ""))
    reported = {
        semconv.GEN_AI_PROVIDER_NAME: PROVIDERS.get(provider, provider) if provider else None,
        semconv.SERVER_ADDRESS: address.hostname,
        semconv.SERVER_PORT: address.port,
    }
    running = runtime.running()
    known: dict[str, AttributeValue] = {name: value for name, value in reported.items() if value is not None}
    return known if running is None else running.named(known)


def _closing(stream: Any) -> None:
    if not stream.__dict__.get(READING):  # at an error it closes itself, and then raises the error
        stream.__dict__[RECORDING].closed()


def _failed(recording: Recording, error: BaseException) -> None:
    if type(error).__name__ == "APIConnectionError":  # litellm's word for whatever else a provider raises meanwhile
        recording.ended(ERROR, error_type(error))
    else:
        recording.failed(error)


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
                if self.completion_stream is None or self.__dict__[ROUTED]:  # a request may be sent
                    with suppressing(recording):
                        chunk = super().__next__()
                else:
                    chunk = super().__next__()
            except StopIteration:
                recording.exhausted()
                raise
            except BaseException as error:
                _failed(recording, error)
                raise
            finally:
                self.__dict__[READING] = False
            _take(recording, chunk)
            return chunk

        async def __anext__(self) -> Any:
            recording = self.__dict__[RECORDING]
            self.__dict__[READING] = True
            try:
                if self.completion_stream is None or self.__dict__[ROUTED]:
                    with suppressing(recording):
                        chunk = await super().__anext__()
                else:
                    chunk = await super().__anext__()
            except StopAsyncIteration:
                recording.exhausted()
                raise
            except BaseException as error:
                _failed(recording, error)
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


@functools.lru_cache(maxsize=64)
def _tried(stream_type: Any) -> Any:
    """Return the class of an attempt's stream that sees its error, and is otherwise the original class."""

    class Tried(stream_type):  # type: ignore[misc]
        def __next__(self) -> Any:
            try:
                return super().__next__()
            except StopIteration:
                raise
            except Exception as error:
                self.__dict__[ATTEMPT].failed(error)
                raise

        async def __anext__(self) -> Any:
            try:
                return await super().__anext__()
            except StopAsyncIteration:
                raise
            except Exception as error:
                self.__dict__[ATTEMPT].failed(error)
                raise

    return disguised(Tried, stream_type)
