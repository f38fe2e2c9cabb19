"""One HTTP exchange of a server, as the middleware hears it: the request's body, the reply's pieces, how it ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_llm import semconv
from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation import committed, propagation, runtime
from otel_llm.instrumentation.alike import Alike
from otel_llm.instrumentation.chunks import MAX_CHOICES, PLAIN
from otel_llm.instrumentation.outcomes import CANCELLED, COMPLETED, ERROR, error_type
from otel_llm.instrumentation.recording import Recording
from otel_llm.instrumentation.served import Served, ServedReader
from otel_llm.instrumentation.sse import SseParser
from otel_llm.instrumentation.sse_chunks import DONE, View, error_of, is_plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_llm.instrumentation.asgi import Message, Receive, Scope, Send
    from otel_llm.instrumentation.chunks import Reading
    from otel_llm.instrumentation.runtime import Runtime
    from otel_llm.instrumentation.sse_chunks import Api

MAX_BODY: Final = 4 << 20
"""Bytes of a request's body that are looked at; of a longer one model and choices are told by the reply."""
EVENT_STREAM: Final = b"text/event-stream"
REQUEST_ID_HEADERS: Final = (b"x-request-id", b"request-id")

# A piece of a reply whose tokens the engine tells is not read but searched: text that looks like one of these has its
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
    """Listens to one exchange and records the reply if it is a stream.

    `receive` and `send` stand in the place of the server's: every message goes through them unchanged, and what they
    raise is what the server's raised. A failure of ours ends the recording, never the exchange.
    """

    def __init__(
        self,
        running: Runtime,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        api: Api,
        provider: str | None,
        instance: str | None,
    ) -> None:
        self._commit_ns = running.clock_ns()
        self._running = running
        self._receive = receive
        self._send = send
        self._api = api
        self._provider = provider
        self._instance = instance
        self._server = scope.get("server")
        self._request_id = _header(scope["headers"], REQUEST_ID_HEADERS)
        self._context = propagation.extract(scope["headers"])
        self._parts: list[bytes] | None = []  # of the request's body, None when it is read, or too long to be
        self._size = 0
        self._model: str | None = None
        self._choices = 1
        self._gone = False  # whether the client was seen to leave
        self._streams = False  # whether the reply is a stream of events
        self._deaf = False  # whether we failed, and listen no more
        self._text = api.reader()
        self._parser = SseParser()
        self._alike = Alike(self._parser)
        self.served = Served(ServedReader(self._text))

    # What the application calls.

    async def receive(self) -> Message:
        """Return the next message of the client."""
        message = await self._receive()
        if not self._deaf:
            try:
                if message["type"] == "http.disconnect":
                    self._left()
                else:
                    self._take(message)
            except Exception as bug:  # noqa: BLE001
                self._broken(bug)
        return message

    async def send(self, message: Message) -> None:
        """Send a message to the client."""
        ends = False
        if not self._deaf:
            try:
                if message["type"] == "http.response.body":
                    self._sends(message.get("body", b""))
                    ends = not message.get("more_body", False)
                elif message["type"] == "http.response.start":
                    self._starts(message)
            except Exception as bug:  # noqa: BLE001
                self._broken(bug)
        try:
            await self._send(message)
        except OSError:
            self._left()
            raise
        if ends:
            self._end(COMPLETED)

    # What the middleware calls.

    def raised(self, error: BaseException) -> None:
        """Take note that the application raised `error`."""
        if not isinstance(error, Exception) or self._gone:
            self._end(CANCELLED)
        else:
            self._end(ERROR, error_type(error))

    def returned(self) -> None:
        """Take note that the application is done; a reply that it did not finish is one that failed."""
        self._end(CANCELLED if self._gone else ERROR, None if self._gone else "incomplete")

    # What becomes of it.

    def _take(self, message: Message) -> None:
        if self._parts is None:
            return
        body = message.get("body", b"")
        self._size += len(body)
        if self._size > MAX_BODY:
            self._parts = None
            return
        if body:
            self._parts.append(body)
        if not message.get("more_body", False):
            parts, self._parts = self._parts, None
            self._asked(b"".join(parts))

    def _asked(self, body: bytes) -> None:
        try:
            asked: Any = json.loads(body)
        except (ValueError, RecursionError):
            return  # the application will say what it thinks of that
        if not isinstance(asked, dict):
            return
        model, count, prompt = asked.get("model"), asked.get("n"), asked.get("prompt")
        self._model = model if isinstance(model, str) else None
        choices = count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 1
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            self.served.prompts = len(prompt)
        choices *= self.served.prompts
        self._choices = choices if choices <= MAX_CHOICES else 1
        if asked.get("stream") is True:
            self._begin()

    def _begin(self) -> None:
        span_only: dict[str, Any] = {semconv.GEN_AI_REQUEST_STREAM: True}
        if self._choices > 1:
            span_only[semconv.GEN_AI_REQUEST_CHOICE_COUNT] = self._choices
        if self._request_id is not None:
            span_only[semconv.GEN_AI_REQUEST_ID] = self._request_id
        host, port = self._server or (None, None)
        request = committed.request(
            self._running,
            self._context,
            operation=self._api.operation,
            model=self._model,
            gen_ai={
                semconv.GEN_AI_PROVIDER_NAME: self._provider,
                semconv.SERVER_ADDRESS: host,
                semconv.SERVER_PORT: port,
            },
            ours={semconv.INSTANCE: self._instance},
            span_only=span_only,
            commit_ns=self._commit_ns,
            choices=self._choices,
            server=True,
            stack="asgi",
        )
        recording = Recording(self._running, request, self.served.reader)
        recording.announce(self._context)
        self.served.recording = recording
        if self._gone:
            self._end(CANCELLED)

    def _starts(self, message: Message) -> None:
        status, headers = message["status"], message.get("headers", ())
        self._streams = (_header(headers, (b"content-type",)) or "").startswith(EVENT_STREAM.decode())
        if status >= 400:
            self._end(CANCELLED if self._gone else ERROR, None if self._gone else str(status))
        elif self._streams and self.served.recording is None:
            self._begin()  # streamed unasked, or asked for in a way that we do not know

    def _sends(self, body: bytes) -> None:
        recording = self.served.recording
        if recording is None or not self._streams or recording.done:
            return
        now_ns = recording.clock_ns()
        adopted = self.served.reader.adopted
        if adopted and self._choices == 1 and not any(mark in body for mark in _TELLING):
            for mark, kind in _KINDS:
                if mark in body:
                    self.served.kinds[0] = kind
                    break
            return
        text, common = self._text, self._api.text
        reading = None if adopted else self._alike.of(body)
        if reading is not None:
            if reading:
                recording.append(now_ns if reading is PLAIN else (now_ns, reading))
            return
        events = self._parser.feed(body)
        for event in events:
            if text.plain and common is not None and not adopted and is_plain(event, common):
                reading = PLAIN
                recording.append(now_ns)
            else:
                reading = self._read(recording, event, now_ns)
        self._alike.learn(body, events, reading if text.plain and not adopted else None)

    def _read(self, recording: Recording, event: bytes, now_ns: int) -> Reading | None:
        if event.strip() == DONE:
            return None
        try:
            chunk = _decoder.decode(event.decode("utf-8", "replace"))
        except ValueError:  # not ours to judge
            return None
        reading: Reading = self._text(chunk)
        if self.served.reader.adopted:
            for choice, kind, count, _ in reading:
                if count:
                    self.served.kinds[choice] = kind
            reading = tuple((choice, kind, 0, True) for choice, kind, _, finished in reading if finished)
        if reading:
            recording.append((now_ns, reading))
        if (failure := error_of(chunk)) is not None:
            self._end(ERROR, failure)
        return reading

    def _left(self) -> None:
        self._gone = True
        self._end(CANCELLED)

    def _end(self, outcome: str, error: str | None = None) -> None:
        recording = self.served.recording
        if self._deaf or recording is None or recording.done:
            return
        try:
            self.served.tell_facts()
            recording.ended(outcome, error)
        except Exception as bug:  # noqa: BLE001
            self._broken(bug)

    def _broken(self, bug: BaseException) -> None:
        self._deaf = True
        if self.served.recording is not None:
            self.served.recording.broken(bug)
        else:
            runtime.warn(bug)


def _header(headers: Iterable[tuple[bytes, bytes]], names: tuple[bytes, ...]) -> str | None:
    for name, value in headers:
        if name.lower() in names:
            return bytes(value).decode("latin-1")[:256]
    return None
