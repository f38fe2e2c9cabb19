"""A request for a streamed reply, known by its path and its body: all that HTTP clients see of an inference."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry import context as otel_context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.suppressing import carrier, is_nested
from otel_llm.instrumentation.parse.http_body import unpacked
from otel_llm.instrumentation.parse.json_bodies import SniffedBody
from otel_llm.instrumentation.parse.sse_chunks import Tap, api_of, media_type
from otel_llm.instrumentation.parse.wires import WIRES, provider_of
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.request import request_builder
from otel_llm.instrumentation.request.wishes import NO_WISHES, Wishes, wishes_of
from otel_llm.instrumentation.segments.outcomes import ERROR

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from otel_llm.instrumentation.parse.sse_chunks import Api
    from otel_llm.instrumentation.process.runtime import Runtime

MAX_BODY_BYTES: Final = 16 << 20
"""A longer request is not parsed: its reply is known by its content type."""

_MAGIC: Final = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x78", "deflate"))
"""The first bytes of a compressed body; no JSON begins so."""
_STREAMS: Final = re.compile(rb'"stream"\s*:\s*true')
_CANDIDATES: Final = b'"candidateCount"'
_MODEL: Final = re.compile(r"/deployments/([^/]+)/|/([^/:]+):[A-Za-z]+$")
"""The part of a path with the model's name: Azure's and Google's have one."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """The request's statements on its reply: whether it is a stream, by which model, and the other wishes."""

    stream: bool
    model: str | None = None
    wishes: Wishes = NO_WISHES


UNSEEN: Final = StreamRequest(stream=False)
"""For a body that could not be read, such as one that is itself a stream."""


def stream_request(api: Api, path: str, body: object) -> StreamRequest | None:
    """Return the request's wishes, None if it wants no stream, `UNSEEN` if that is not known.

    `body` is the JSON text, the object that it will be made of, or anything else. It is neither consumed nor changed.
    """
    if isinstance(body, str):
        body = body.encode("utf-8", "replace")
    found = _MODEL.search(path)
    model = None if found is None else found[1] or found[2]
    if isinstance(body, bytes | bytearray) and len(body) <= MAX_BODY_BYTES:
        body = _uncompressed(bytes(body))
        if body.lstrip()[:1] != b"{":  # of another form: the answer shows whether it streams
            return UNSEEN if body else None
        # Parsing a long body takes time, so most bodies are decided by a search alone.
        if api.streams_by == "flag" and _STREAMS.search(body) is None:
            return None
        if api.streams_by == "path" and _CANDIDATES not in body:
            return StreamRequest(stream=True, model=model)
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None
    if not isinstance(body, dict):
        return StreamRequest(stream=True, model=model) if api.streams_by == "path" else UNSEEN
    stated, stream = body.get("model"), body.get("stream")
    if isinstance(stated, str):
        model = stated
    if api.streams_by == "flag" and stream is not True:
        return None
    if api.streams_by == "default" and (stream is False or model is None):  # without a model it is another API's path
        return None
    return StreamRequest(stream=True, model=model, wishes=wishes_of(body))


def _uncompressed(body: bytes) -> bytes:
    """Return a body without its compression; as it is if it has none, or one that cannot be undone."""
    coding = next((coding for magic, coding in _MAGIC if body.startswith(magic)), None)
    return body if coding is None else unpacked(body, coding, MAX_BODY_BYTES) or body


class Call:
    """One HTTP request for a reply that is, or may turn out to be, a stream."""

    __slots__ = (
        "_api",
        "_commit_ns",
        "_context",
        "_host",
        "_path",
        "_port",
        "_running",
        "_scheme",
        "_stack",
        "recording",
    )

    def __init__(
        self,
        running: Runtime,
        api: Api,
        path: str,
        wants: StreamRequest,
        scheme: str,
        host: str | None,
        port: int | None,
        stack: str,
    ) -> None:
        self._running = running
        self._api = api
        self._context: Context = otel_context.get_current()
        self._path = path
        self._scheme = scheme
        self._host = host
        self._port = port
        self._stack = stack
        self._commit_ns = running.clock_ns()
        self.recording: Recording | None = None
        if wants.stream:
            self._begin(wants)

    def _begin(self, wants: StreamRequest) -> Recording:
        request = request_builder.by_client(
            self._running,
            self._context,
            operation=self._api.operation,
            model=wants.model,
            provider=provider_of(self._api.provider, self._host, self._path),
            scheme=self._scheme,
            host=self._host,
            port=self._port,
            wishes=wants.wishes,
            commit_ns=self._commit_ns,
            stack=self._stack,
        )
        self.recording = Recording(self._running, request, self._api.reader())
        self.recording.announce(self._context)
        return self.recording

    def failed(self, error: BaseException) -> None:
        """Note that no response was received."""
        if self.recording is not None:
            self.recording.failed(error)

    def answered(self, status: int, content_type: str) -> Tap | None:
        """Return the tap of the response's body, None if it has no stream."""
        recording = self.recording
        if status >= 300:  # a redirect too: the request that follows is one of its own
            if recording is not None:
                recording.ended(ERROR, str(status))  # `error.type` of HTTP in the semantic conventions
            return None
        if recording is None:
            streams = media_type(content_type) in self._api.parsers
            return tap_of(self._begin(UNSEEN), self._api, content_type) if streams else None
        return tap_of(recording, self._api, content_type)


def tap_of(recording: Recording, api: Api, content_type: str) -> Tap:
    """Return the tap of a reply to a request for a stream; it is whole if it comes at once, as one JSON text."""
    parser = api.parsers.get(media_type(content_type), SniffedBody)
    return Tap(recording, api, parser, whole=is_whole(api, content_type))


def is_whole(api: Api, content_type: str) -> bool:
    """Return whether a reply of this content type comes at once, as one JSON text."""
    kind = media_type(content_type)
    return kind not in api.parsers and "json" in kind


def carried(path: str) -> Recording | None:
    """Return the outer recording whose trace goes into a request to this path; None for none."""
    recording = carrier()
    return None if recording is None or api_of(path, WIRES) is None else recording


def call(path: str, body: object, scheme: str, host: str | None, port: int | None, stack: str) -> Call | None:
    """Return the recorded call of a request that is about to be sent, None for one that is not recorded. Never raises.

    `body` as for `stream_request`; `port` None is the scheme's own; `stack` is the sender.
    """
    try:
        running = runtime.running()
        if running is None or (api := api_of(path, WIRES)) is None or is_nested() or not is_instrumentation_enabled():
            return None
        wants = stream_request(api, path, body)
        return None if wants is None else Call(running, api, path, wants, scheme, host, port, stack)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None
