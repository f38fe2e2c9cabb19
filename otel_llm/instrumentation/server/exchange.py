"""One HTTP exchange of a server, reported by a middleware: the request's body, the reply's chunks, the end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_llm import semconv
from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.server_context import ServerContext, ServerReader
from otel_llm.instrumentation.parse.event_template import EventTemplate
from otel_llm.instrumentation.parse.http_body import BodyError, HttpBody, unpacked
from otel_llm.instrumentation.parse.json_bodies import SniffedBody
from otel_llm.instrumentation.parse.sse import SseParser
from otel_llm.instrumentation.parse.sse_chunks import APIS, event_of
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.request import propagation, request_builder
from otel_llm.instrumentation.request.wishes import NO_WISHES, wishes_of
from otel_llm.instrumentation.segments.chunks import sized_mark
from otel_llm.instrumentation.segments.outcomes import CANCELLED, COMPLETED, DISCONNECTED, ERROR, error_type, outcome_of
from otel_llm.instrumentation.segments.stated_errors import error_of
from otel_llm.instrumentation.segments.statements import text_of
from otel_llm.instrumentation.server.http_headers import content_coding, header, media_type_of

if TYPE_CHECKING:
    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.parse.sse import Event, Parser
    from otel_llm.instrumentation.parse.sse_chunks import Api
    from otel_llm.instrumentation.process.runtime import Runtime
    from otel_llm.instrumentation.segments.chunks import Reading
    from otel_llm.instrumentation.server.http_headers import Headers

MAX_BODY: Final = 4 << 20
"""The bytes of a request's body that are read; for a longer one model and choices come from the reply."""
EVENT_STREAM: Final = "text/event-stream"
UNSAID: Final = frozenset({"", "text/plain"})
"""Content types that do not say whether a reply is a stream of events: its content does."""
NO_STREAM: Final = "not_a_stream"
"""The `error.type` of a requested stream that was answered with something else."""
REQUEST_ID_HEADERS: Final = (b"x-request-id", b"request-id")

# A chunk of a reply whose tokens the engine counts is not parsed but searched: inside text these patterns have their
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


class Exchange:
    """One exchange; the reply is recorded if it is a stream.

    The middleware of ASGI or WSGI reports each chunk of the request and of the reply as it passes. Errors of `take`,
    `starts` and `sends` are ours and go to `broken`, which ends the recording, never the exchange. `deaf`: that
    happened, and nothing more need be reported. The other methods raise nothing.
    """

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
        self._coding = content_coding(headers)
        self._request_body: bytearray | None = bytearray()  # the request's body, None when it is read, or too long
        self._model: str | None = None
        self._route: str | None = None
        self._wishes = NO_WISHES
        self._gone = False  # whether the client was seen to leave
        self._last = False  # whether the server is taking the last chunk
        self._over = False  # whether the reply was sent to its end
        self._ended: tuple[str, str | None] | None = None  # the end that was seen first, perhaps before the recording
        self._streams = False  # whether the reply is a stream of events, or may be one
        self._unsure = False  # whether only its content can tell
        self._content_type = ""
        self._text: Any = api.reader()
        self._parser: Parser = SniffedBody(self._event)
        self._template = EventTemplate(self._parser)
        self._unpacker: HttpBody | None = None
        self.deaf = False
        self.server_context = ServerContext(ServerReader(self._text), propagation.extract(headers))

    @property
    def reads_request(self) -> bool:
        """Return whether the request's body is wanted."""
        return self._request_body is not None

    @property
    def listens(self) -> bool:
        """Return whether the reply is recorded, or may yet turn out to be a stream."""
        return self.server_context.open or self._unsure

    def take(self, body: bytes, *, more: bool) -> None:
        """Apply a chunk of the request's body; `more` follow."""
        request_body = self._request_body
        if request_body is None:
            return
        whole = len(request_body) + len(body) <= MAX_BODY
        if whole:
            request_body += body
        if not (more and whole):
            self._request_body = None
            self._requested(_members_of(bytes(request_body), self._coding) if whole else None)

    def starts(self, status: int, headers: Headers) -> None:
        """Apply the reply's head."""
        self._content_type = media_type_of(headers)
        self._unsure = status < 400 and self._content_type in UNSAID
        self._streams = self._unsure or (status < 400 and self._content_type == EVENT_STREAM)
        if status >= 400:
            self._refused(status)
        elif not self._streams and not self.server_context.reader.adopted:
            self._end(ERROR, NO_STREAM)
        elif self._streams:
            self._unpacker = _unpacker_of(content_coding(headers))
            if self._unsure:  # one JSON text is none
                self._parser = SseParser(self._event, early=True)
                self._template = EventTemplate(self._parser)
            elif self.server_context.recording is None:
                self._begin()  # streamed unasked, or asked for in an unknown way

    def sends(self, body: bytes) -> None:
        """Apply a chunk of the reply, which is about to be sent."""
        if not self._streams:
            return
        if self._unpacker is None:
            self._apply(body)
            return
        try:
            for chunk in self._unpacker.feed(body):
                self._apply(chunk)
        except BodyError:  # the client can make no more of it
            self._streams = False

    def _apply(self, body: bytes) -> None:
        recording = self.server_context.recording
        now_ns = self._running.clock_ns()
        adopted = self.server_context.reader.adopted
        if recording is not None:
            if recording.done:
                return
            recording.last_byte_ns = now_ns
            if adopted and self._wishes.choices == 1 and not any(mark in body for mark in _TELLING):
                for mark, kind in _KINDS:
                    if mark in body:
                        self.server_context.kinds[0] = kind
                        break
                return
            reading = None if adopted else self._template.of(body)
            if reading is not None:
                if reading:
                    recording.append((now_ns, reading))
                return
        events: list[Event] = self._parser.feed(body)
        reading = self._apply_events(events, now_ns)
        self._template.learn(body, events, reading if self._text.plain and not adopted else None)

    def _apply_events(self, events: list[Event], now_ns: int) -> Reading | None:
        """Record the tokens of events, and return the reading of the last one."""
        if self._unsure and events:
            self._unsure = False
            if self.server_context.recording is None:
                self._begin()
        reading: Reading | None = None
        if (recording := self.server_context.recording) is not None:
            for event in events:
                reading = self._read(recording, event, now_ns)
        return reading

    def ending(self) -> None:
        """Note that the last chunk is about to be sent: the server may say that the client left while it takes it."""
        self._last = True

    def completed(self) -> None:
        """Note that the reply was sent completely."""
        if not self._over:
            self._over, self._last = True, False
            try:
                self._read_rest()
            except Exception as bug:  # noqa: BLE001
                self.broken(bug)
        self._end(COMPLETED)

    def unsent(self, error: BaseException) -> None:
        """Note that the server raised `error` for a chunk that was sent to it."""
        broke = isinstance(error, OSError) or outcome_of(error) == DISCONNECTED
        if self._last and self._gone and not broke:
            self.completed()  # the application was stopped because the server had taken all
            return
        self._last = False
        if broke:
            self.left()

    def left(self) -> None:
        """Note that the client left."""
        self._gone = True
        if self._last:
            return
        self._end(CANCELLED)
        if not self._over:
            self.server_context.leave()

    def raised(self, error: BaseException) -> None:
        """Note that the application raised `error`."""
        self._last = False
        if not isinstance(error, Exception) or self._gone:
            self.left()
        else:
            self._end(ERROR, error_type(error))

    def returned(self) -> None:
        """Note that the application has returned; an unfinished reply has failed."""
        if self._last:
            self.completed()
        else:
            self._end(CANCELLED if self._gone else ERROR, None if self._gone else "incomplete")

    def broken(self, bug: BaseException) -> None:
        """Stop listening because of a failure of ours."""
        self.deaf = True
        if self.server_context.recording is not None:
            self.server_context.recording.broken(bug)
        else:
            runtime.warn(bug)

    def _requested(self, members: dict[str, Any] | None) -> None:
        """Apply the request's JSON object; None: it is another body, or too long."""
        if members is None:
            return  # the application will answer that
        model, prompt = members.get("model"), members.get("prompt")
        self._model = model if isinstance(model, str) else None
        if (recording := self.server_context.recording) is not None:  # the reply began before its request was read
            recording.identify(self._late())
            return
        wishes = wishes_of(members)
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            self.server_context.prompts = len(prompt)
        choices = wishes.choices * self.server_context.prompts
        self._wishes = replace(wishes, choices=choices if choices <= semconv.MAX_CHOICES else 1)
        if members.get("stream") is True:
            self._begin()

    def _late(self) -> dict[str, AttributeValue]:
        """Return the model's name as attributes for a recording that was made without it."""
        model = text_of(self._model)
        return {} if model is None else self._running.named({semconv.GEN_AI_REQUEST_MODEL: model})

    def _begin(self) -> None:
        context = self.server_context.surroundings()
        recording = self._recording()
        recording.announce(context)
        self.server_context.recording = recording
        if self._ended is not None:
            self._end(*self._ended)

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
                semconv.HTTP_ROUTE: self._route,
            },
            ours={semconv.INSTANCE: self._instance},
            span_only={**request_builder.STREAMED, **known},
            commit_ns=self._commit_ns,
            wishes=self._wishes,
            server=True,
            stack=self._stack,
        )
        return Recording(self._running, request, self.server_context.reader)

    def _event(self, data: bytes) -> Event | None:
        return event_of(data, None if self.server_context.reader.adopted else self._api.text, self._text)

    def _read(self, recording: Recording, event: Event, now_ns: int) -> Reading | None:
        chunk = event.value
        if isinstance(chunk, bytes):
            return None
        if isinstance(chunk, int):
            recording.append((now_ns, chunk))
            return sized_mark(CONTENT, chunk)
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

    def _read_rest(self) -> None:
        """Apply what the reply's end left unfinished."""
        if self._streams:
            self._apply_events(self._parser.end(), self._running.clock_ns())
        if self._unsure and not self.server_context.reader.adopted:
            self._end(ERROR, NO_STREAM)

    def _complete(self) -> None:
        """Do the remaining work before the recording ends."""

    def _end(self, outcome: str, error: str | None = None) -> None:
        self._ended = self._ended or (outcome, error)
        recording = self.server_context.recording
        if self.deaf or recording is None or recording.done:
            return
        outcome, error = self._ended
        try:
            self._complete()
            if error == NO_STREAM:
                where = next(ending for ending, api in APIS if api is self._api)
                remedy = "A stream was asked for: it is recorded as an error."
                self._running.refuse_reply(where, self._content_type, remedy)
            self.server_context.record_facts()
            recording.ended(outcome, error)
        except Exception as bug:  # noqa: BLE001
            self.broken(bug)


def _members_of(body: bytes, coding: str) -> dict[str, Any] | None:
    """Return the members of a request's JSON object, None if it is another body."""
    found = unpacked(body, coding, MAX_BODY)
    try:
        value: Any = None if found is None else json.loads(found)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unpacker_of(coding: str) -> HttpBody | None:
    """Return what unpacks a reply's chunks, None if they are not compressed, or not in a known way."""
    try:
        return HttpBody(chunked=False, length=None, coding=coding) if coding else None
    except BodyError:
        return None
