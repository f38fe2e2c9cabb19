"""The common part of the ASGI and WSGI middlewares: which requests are recorded, from when, under which names."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Final

from opentelemetry import trace

from otel_llm.export import host_log
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.request import propagation
from otel_llm.instrumentation.request.request_builder import INSTANCE_VARIABLE
from otel_llm.instrumentation.server.exchange import Exchange
from otel_llm.instrumentation.server.own import Endpoints, Own, OwnExchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.context import Context

    from otel_llm.instrumentation.process.runtime import Runtime
    from otel_llm.instrumentation.server.http_headers import Headers
    from otel_llm.instrumentation.server.own import Count, Kind, Model

    Address = tuple[str, int | None]

ENGINES: Final = ("vllm", "sglang", "transformers")
"""The default provider: the first of these that this process has imported."""


class Middleware:
    """The choice of recorded requests; a subclass passes the requests through.

    `provider` is the recorded `gen_ai.provider.name`, by default the engine in this process. `instance` is this
    replica's name (`otel_llm.instance`), by default the variable OTEL_LLM_INSTANCE, else `host:port`. `paths` are
    endpoints of the application's own, exact or with a trailing `*`, beside those of the known APIs. Each server-sent
    event, line or piece of text that they stream is a chunk: `kind(chunk)` returns its kind (`content`, `reasoning`,
    `tool`, or None for no token), `count(chunk)` its number of tokens. `chunk` is the event's data, the line, or the
    piece, as text; `docs/stacks/asgi.md` says what counts without callbacks. `model` is the model's name at these
    paths, or `model(body)` returns it; `body` is the request's JSON object, None if it has none. Raises ValueError for
    invalid settings.
    """

    stack: ClassVar[str]
    """The recorder's name."""

    def __init__(
        self,
        app: Any,
        provider: str | None = None,
        instance: str | None = None,
        *,
        paths: Iterable[str] = (),
        kind: Kind | None = None,
        count: Count | None = None,
        model: Model | None = None,
    ) -> None:
        self._app = app
        self._provider = provider
        self._instance = instance or os.environ.get(INSTANCE_VARIABLE) or None
        self._endpoints = Endpoints(paths, kind, count, model)
        self._started = False
        self._failed = False

    def _exchange(
        self, method: str, path: str, headers: Callable[[], Headers], address: Callable[[], Address | None]
    ) -> Exchange | None:
        """Return the listener of a request that may be answered by a stream, None for all others. Raises nothing."""
        try:
            endpoint = self._endpoints.find(method, path)
            running = None if endpoint is None else self._running()
            if endpoint is None or running is None:
                return None
            server = address()
            instance = self._instance or (None if server is None else _instance(server[1]))
            provider = self._provider or next((name for name in ENGINES if name in sys.modules), None)
            known: dict[str, Any] = {"provider": provider, "instance": instance, "stack": self.stack}
            if isinstance(endpoint, Own):
                return OwnExchange(running, headers(), server, own=endpoint, method=method, **known)
            return Exchange(running, headers(), server, api=endpoint, **known)
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)
            return None

    def _running(self) -> Runtime | None:
        """Return the recorder, started at the first call: at the start of the server, if that is reported.

        Once only: a recorder that was stopped is not started again.
        """
        if self._started:
            return runtime.running()
        if self._failed or runtime.disabled():
            self._failed = True
            return None
        try:
            running = runtime.start(runtime.configured)
        except Exception as bug:  # noqa: BLE001  bad settings: they are as bad for the next request
            self._failed = True
            host_log.warning("otel_llm cannot start and records nothing: %s", bug)
            return None
        self._started = True
        return running


def handed_on(headers: Callable[[], Headers]) -> Context | None:
    """Return the context for an application whose reply is not recorded; None: unchanged. Raises nothing."""
    try:
        if runtime.running() is None or not propagation.carries(found := headers()):
            return None
        context = propagation.extract(found)
        return propagation.around(context, trace.get_current_span(context))
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None


def _instance(port: int | None) -> str:
    return socket.gethostname() if port is None else f"{socket.gethostname()}:{port}"
