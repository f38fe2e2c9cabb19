"""One HTTP exchange of a server, reported by a middleware: the request's body, the reply's pieces, the end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_llm import semconv
from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.server_context import ServerContext, ServerReader
from otel_llm.instrumentation.parse.event_template import EventTemplate
from otel_llm.instrumentation.parse.sse import SseParser
from otel_llm.instrumentation.parse.sse_chunks import APIS, DONE, View, error_of, media_type, plain_size
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.request import propagation, request_builder
from otel_llm.instrumentation.request.wishes import NO_WISHES, wishes_of
from otel_llm.instrumentation.segments.chunks import MAX_CHOICES, sized_mark
from otel_llm.instrumentation.segments.outcomes import CANCELLED, COMPLETED, ERROR, error_type

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_llm.instrumentation.parse.sse_chunks import Api
    from otel_llm.instrumentation.process.runtime import Runtime
    from otel_llm.instrumentation.segments.chunks import Reading

    Headers = Iterable[tuple[bytes, bytes]]

MAX_BODY: Final = 4 << 20
"""The bytes of a request's body that are read; for a longer one model and choices come from the reply."""
EVENT_STREAM: Final = "text/event-stream"
NO_STREAM: Final = "not_a_stream"
"""The `error.type` of a requested stream that was answered with something else."""
REQUEST_ID_HEADERS: Final = (b"x-request-id", b"request-id")

# A piece of a reply whose tokens the engine counts is not parsed but searched: inside text these patterns have their
# quotes escaped.
_TELLING: Final = (b'"finish_reason":"', b'"error":')
_KINDS: Final = (
    (b'"reasoning":"', REASONING),
    (b'"reasoning_content":"', REASONING),
    (b'"tool_calls":[{', TOOL),
    (b'"content":"', CONTENT),
    (b'"response.reasoning', REASONING),
    (b'"response.function_call_arguments.delta"', TOOL),
    (b'"response.output_text.delta"', CONTENT),
    (b'"thinking_delta"', REASONING),
    (b'"input_json_delta"', TOOL),
    (b'"text_delta"', CONTENT),
)


_decoder: Final = json.JSONDecoder(object_hook=View)


class Exchange:
    """One exchange; the reply is recorded if it is a stream.

    The middleware of ASGI or WSGI reports each piece of the request and of the reply as it passes. Errors of `take`,
    `starts` and `sends` are ours and go to `broken`, which ends the recording, never the exchange. `deaf`: that
    happened, and nothing more need be reported. The other methods raise nothing.
    """

    reads_request: ClassVar[bool] = True
    """Whether the request's body shows the kind of its reply."""

    def __init__(
        self,
        running: Runtime,
        headers: Headers,
        server: tuple[str, int | None] | None,
        *,
        api: Api,
        provider: str | None,
        instance: str | None,
        stack: str,
    ) -> None:
        self._commit_ns = running.clock_ns()
        self._running = running
        self._api = api
        self._provider = provider
        self._instance = instance
        self._stack = stack
        self._server = server
        self._request_id = header(headers, REQUEST_ID_HEADERS)
        self._parts: list[bytes] | None = []  # of the request's body, None when it is read, or too long
        self._size = 0
        self._model: str | None = None
        self._wishes = NO_WISHES
        self._gone = False  # whether the client was seen to leave
        self._over = False  # whether the reply was sent to its end
        self._streams = False  # whether the reply is a stream of events
        self._text = api.reader()
        self._parser = SseParser()
        self._template = EventTemplate(self._parser)
        self.deaf = False
        self.server_context = ServerContext(ServerReader(self._text), propagation.extract(headers))

    def take(self, body: bytes, *, more: bool) -> None:
        """Apply a piece of the request's body; `more` follow."""
        if self._parts is None:
            return
        self._size += len(body)
        if self._size > MAX_BODY:
            self._parts = None
            return
        if body:
            self._parts.append(body)
        if not more:
            parts, self._parts = self._parts, None
            self._asked(b"".join(parts))

    def starts(self, status: int, headers: Headers) -> None:
        """Apply the reply's head."""
        content_type = media_type_of(headers)
        self._streams = content_type == EVENT_STREAM
        if status >= 400:
            self._refused(status)
        elif self._streams and self.server_context.recording is None:
            self._begin()  # streamed unasked, or asked for in an unknown way
        elif not self._streams and self.server_context.open and not self.server_context.reader.adopted:
            where = next(ending for ending, api in APIS if api is self._api)
            self._running.refuse_reply(where, content_type, "A stream was asked for: it is recorded as an error.")
            self._end(ERROR, NO_STREAM)

    def sends(self, body: bytes) -> None:
        """Apply a piece of the reply, which is about to be sent."""
        recording = self.server_context.recording
        if recording is None or not self._streams or recording.done:
            return
        now_ns = recording.last_byte_ns = recording.clock_ns()
        adopted = self.server_context.reader.adopted
        if adopted and self._wishes.choices == 1 and not any(mark in body for mark in _TELLING):
            for mark, kind in _KINDS:
                if mark in body:
                    self.server_context.kinds[0] = kind
                    break
            return
        text, common = self._text, self._api.text
        reading = None if adopted else self._template.of(body)
        if reading is not None:
            if reading:
                recording.append((now_ns, reading))
            return
        events = self._parser.feed(body)
        for event in events:
            size = plain_size(event, common) if text.plain and common is not None and not adopted else 0
            if size:
                reading = sized_mark(CONTENT, size)
                recording.append((now_ns, size))
            else:
                reading = self._read(recording, event, now_ns)
        self._template.learn(body, events, reading if text.plain and not adopted else None)

    def completed(self) -> None:
        """Note that the reply was sent completely."""
        self._over = True
        self._end(COMPLETED)

    def left(self) -> None:
        """Note that the client left."""
        self._gone = True
        self._end(CANCELLED)
        if not self._over:
            self.server_context.leave()

    def raised(self, error: BaseException) -> None:
        """Note that the application raised `error`."""
        if not isinstance(error, Exception) or self._gone:
            self.left()
        else:
            self._end(ERROR, error_type(error))

    def returned(self) -> None:
        """Note that the application has returned; an unfinished reply has failed."""
        self._end(CANCELLED if self._gone else ERROR, None if self._gone else "incomplete")

    def broken(self, bug: BaseException) -> None:
        """Stop listening because of a failure of ours."""
        self.deaf = True
        if self.server_context.recording is not None:
            self.server_context.recording.broken(bug)
        else:
            runtime.warn(bug)

    def _asked(self, body: bytes) -> None:
        try:
            asked: Any = json.loads(body)
        except (ValueError, RecursionError):
            return  # the application will answer that
        if not isinstance(asked, dict):
            return
        model, prompt = asked.get("model"), asked.get("prompt")
        self._model = model if isinstance(model, str) else None
        wishes = wishes_of(asked)
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            self.server_context.prompts = len(prompt)
        choices = wishes.choices * self.server_context.prompts
        self._wishes = replace(wishes, choices=choices if choices <= MAX_CHOICES else 1)
        if asked.get("stream") is True:
            self._begin()

    def _begin(self) -> None:
        context = self.server_context.surroundings()
        recording = self._recording()
        recording.announce(context)
        self.server_context.recording = recording
        if self._gone:
            self._end(CANCELLED)

    def _recording(self) -> Recording:
        known = {} if self._request_id is None else {semconv.GEN_AI_REQUEST_ID: self._request_id}
        host, port = self._server or (None, None)
        request = request_builder.request(
            self._running,
            self.server_context.context,
            operation=self._api.operation,
            model=self._model,
            gen_ai={
                semconv.GEN_AI_PROVIDER_NAME: self._provider,
                semconv.SERVER_ADDRESS: host,
                semconv.SERVER_PORT: port,
            },
            ours={semconv.INSTANCE: self._instance},
            span_only={**request_builder.STREAMED, **known},
            commit_ns=self._commit_ns,
            wishes=self._wishes,
            server=True,
            stack=self._stack,
        )
        return Recording(self._running, request, self.server_context.reader)

    def _read(self, recording: Recording, event: bytes, now_ns: int) -> Reading | None:
        if event.strip() == DONE:
            return None
        try:
            chunk = _decoder.decode(event.decode("utf-8", "replace"))
        except (ValueError, RecursionError):  # malformed or nested too deeply: not ours to judge
            return None
        reading: Reading = self._text(chunk)
        if self.server_context.reader.adopted:
            for choice, kind, count, _ in reading:
                if count:
                    self.server_context.kinds[choice] = kind
            reading = tuple((choice, kind, 0, True) for choice, kind, _, finished in reading if finished)
        if reading:
            recording.append((now_ns, reading))
        if (failure := error_of(chunk)) is not None:
            self._end(ERROR, failure)
        return reading

    def _refused(self, status: int) -> None:
        self._end(CANCELLED if self._gone else ERROR, None if self._gone else str(status))

    def _settle(self) -> None:
        """Do the remaining work before the recording ends."""

    def _end(self, outcome: str, error: str | None = None) -> None:
        recording = self.server_context.recording
        if self.deaf or recording is None or recording.done:
            return
        try:
            self._settle()
            self.server_context.record_facts()
            recording.ended(outcome, error)
        except Exception as bug:  # noqa: BLE001
            self.broken(bug)


def header(headers: Headers, names: tuple[bytes, ...]) -> str | None:
    """Return the first of the headers with one of these names (lower case), at most 256 characters of it."""
    for name, value in headers:
        if name.lower() in names:
            return bytes(value).decode("latin-1")[:256]
    return None


def media_type_of(headers: Headers) -> str:
    """Return the content type that a reply's headers state, without its parameters; empty where they state none."""
    return media_type(header(headers, (b"content-type",)) or "")
