"""Record the body of a streamed reply as it passes: bytes in, token times into a recording. Keeps no content.

For hooks that see bytes only: HTTP clients, and the middleware of a server. Chunks are counted by the rules of the
SDKs' readers, which see the JSON of a chunk as if it were an SDK's object.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from otel_llm.export.records import CONTENT
from otel_llm.instrumentation.parse.cohere import FAILURES, MESSAGE_END
from otel_llm.instrumentation.parse.event_template import EventTemplate
from otel_llm.instrumentation.parse.messages import MessagesReader
from otel_llm.instrumentation.parse.responses import FAILED, ResponsesReader
from otel_llm.instrumentation.parse.sse import SseParser
from otel_llm.instrumentation.segments.chunks import FRAMING, ChunkReader, sized_mark
from otel_llm.instrumentation.segments.outcomes import DISCONNECTED, ERROR
from otel_llm.instrumentation.segments.text_size import size_of_json_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.instrumentation.parse.sse import Parser
    from otel_llm.instrumentation.segments.choices import Item, Reader
    from otel_llm.instrumentation.segments.chunks import Reading

DONE: Final = b"[DONE]"

_CONTENT: Final = re.compile(
    rb'"delta": ?\{(?:"role": ?(?:"assistant"|null), ?)?"content": ?"((?:[^"\\]|\\.)+)"', re.DOTALL
)
_TEXT: Final = re.compile(rb'"text": ?"((?:[^"\\]|\\.)+)"', re.DOTALL)
_UNFINISHED: Final = re.compile(rb'"finish_reason": ?null')
_FIRST: Final = re.compile(rb'"index": ?0[,}\s]')
_ERROR_NAMES: Final = ("code", "error_type")
"""The members with the kind of an event's error."""
_ERROR_TYPE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def plain_size(event: bytes, text: re.Pattern[bytes]) -> int:
    """Return the size of an event that is plain text of choice 0, if the server is known to count no tokens; else 0.

    Decided from the bytes, at a small part of a parse's cost. Safe, since inside a JSON string every quotation mark has
    a backslash before it: a match of a key with its colon is one. In doubt, 0. `text` matches the text.
    """
    if event.count(b'"index":') != 1 or (found := text.search(event)) is None:
        return 0
    if _UNFINISHED.search(event) is None or _FIRST.search(event) is None:
        return 0
    return size_of_json_string(found[1])


class View:
    """A JSON object that looks like an SDK's object: its keys are attributes, all of them extras as well."""

    def __init__(self, members: dict[str, Any]) -> None:
        self.__dict__ = members

    @property
    def __pydantic_extra__(self) -> dict[str, Any]:
        return self.__dict__


def viewed(value: Any) -> Any:
    """Return a JSON value with every object in it as a `View`."""
    if isinstance(value, dict):
        return View({name: viewed(member) for name, member in value.items()})
    return [viewed(member) for member in value] if isinstance(value, list) else value


_decoder: Final = json.JSONDecoder(object_hook=View)


class TextReader(ChunkReader):
    """A reader of text completions: the text is in the choice itself."""

    __slots__ = ()

    def __call__(self, chunk: Any) -> Reading:
        """Return the reading of a chunk."""
        choices = getattr(chunk, "choices", None)
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, View):
                choice.__dict__.setdefault("delta", View({"content": choice.__dict__.get("text")}))
        return super().__call__(chunk)


SSE: Final[Mapping[str, Callable[[], Parser]]] = {"text/event-stream": SseParser}


class Api(NamedTuple):
    """One kind of streamed reply: its operation in the conventions, its reader, and its provider.

    `text` matches the text of a plain chunk, if a reader allows that. `asks` is how a request asks for a stream:
    `"stream": true` in its body (`flag`), its path (`path`), no `"stream": false` there (`default`). `parsers` has the
    parser for each content type of a streamed answer; the first is also for unknown types.
    """

    operation: str
    reader: Callable[[], Reader]
    text: re.Pattern[bytes] | None = None
    provider: str = "openai"
    asks: Literal["flag", "path", "default"] = "flag"
    parsers: Mapping[str, Callable[[], Parser]] = SSE


CHAT: Final = Api("chat", ChunkReader, _CONTENT)
RESPONSES: Final = Api("chat", ResponsesReader)
MESSAGES: Final = Api("chat", MessagesReader, provider="anthropic")
APIS: Final[tuple[tuple[str, Api], ...]] = (
    ("/chat/completions", CHAT),
    ("/completions", Api("text_completion", TextReader, _TEXT)),
    ("/responses", RESPONSES),
    ("/messages", MESSAGES),
)
"""The end of a path, and its API; the first match counts."""


def api_of(path: str, apis: Iterable[tuple[str, Api]] = APIS) -> Api | None:
    """Return the API of a path, None for one that streams no tokens."""
    path = path.rstrip("/")
    for ending, api in apis:
        if path.endswith(ending):
            return api
    return None


def media_type(content_type: str) -> str:
    """Return a content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


class StreamRecorder(Protocol):
    """What records the chunks of one reply: a `Recording`, or the load client."""

    @property
    def reader(self) -> Reader:
        """Return the reader of its chunks."""

    @property
    def done(self) -> bool:
        """Return whether it has ended."""

    @property
    def clock_ns(self) -> Callable[[], int]:
        """Return the clock, monotonic ns: when the bytes at hand were received."""

    last_byte_ns: int
    """When the newest byte was received, monotonic ns."""

    @property
    def append(self) -> Callable[[Item], None]:
        """Return what takes the tokens of a chunk."""

    def exhausted(self) -> None:
        """Note that the stream ran to its end."""

    def ended(self, outcome: str, error: str | None = None) -> None:
        """Note the end as its server knows it."""

    def broken(self, bug: BaseException) -> None:
        """Note a failure of ours."""


class _Loop:
    """A loop that has ended already."""

    __slots__ = ("__weakref__",)


class ChunkTap:
    """The reading of one body: its bytes in, token times into a recorder.

    `take` the bytes as they pass, then call `ended` at the end of the body, or another method of the recorder. The
    recorder ends by itself when the reply is complete (`[DONE]`) or has failed: a reader may stop there and never
    reach the end of the body. Nothing here raises.
    """

    __slots__ = ("_parser", "_template", "_text", "recording")

    def __init__(self, recording: StreamRecorder, api: Api, parser: Parser | None = None) -> None:
        self.recording = recording
        self._text = api.text
        self._parser = SseParser() if parser is None else parser
        self._template = EventTemplate(self._parser)

    def take(self, data: bytes) -> None:
        """Apply the next bytes of the body, which were received now."""
        recording = self.recording
        if recording.done:
            return
        try:
            now_ns = recording.last_byte_ns = recording.clock_ns()
            reading = self._template.of(data)
            if reading is not None:
                if reading:
                    recording.append((now_ns, reading))
                return
            parser = self._parser
            events = parser.feed(data)
            for event in events:
                reading = self._read(event, now_ns)
            # A client that reads line by line has a chunk once its line is there, and may stop before the blank one.
            pending = parser.pending()
            if pending is not None and (told := self._read(pending, now_ns)) is not None:
                parser.forget()
                events.append(pending)
                reading = told
            self._template.learn(data, events, reading if recording.reader.plain else None)
        except Exception as bug:  # noqa: BLE001
            recording.broken(bug)

    def ended(self) -> None:
        """Note that the body ended: the reply was cut off, except for choices that were declared complete."""
        recording = self.recording
        if recording.done:
            return
        try:
            now_ns = recording.clock_ns()
            for event in self._parser.end():
                self._read(event, now_ns)
        except Exception as bug:  # noqa: BLE001
            recording.broken(bug)
        recording.ended(DISCONNECTED)

    def _read(self, event: bytes, now_ns: int) -> Reading | None:
        """Record the tokens of an event, and return its reading; None for one that seems incomplete."""
        text = self._text
        if text is not None and self.recording.reader.plain and (size := plain_size(event, text)):
            self.recording.append((now_ns, size))
            return sized_mark(CONTENT, size)
        if event.strip() == DONE:
            self.recording.exhausted()
            return FRAMING
        try:
            chunk = _decoder.decode(event.decode("utf-8", "replace"))
        except (ValueError, RecursionError):  # malformed or nested too deeply: not ours to judge
            return None
        reading = FRAMING
        if isinstance(chunk, View):
            reading = self.recording.reader(chunk)
            self.recording.append((now_ns, reading))
            if (error := error_of(chunk)) is not None:
                self.recording.ended(ERROR, error)
        return reading


class Tap(ChunkTap):
    """The recording of one body in an application; it knows which loop reads it."""

    __slots__ = ("__weakref__", "looped", "waiting")

    recording: Recording

    def __init__(self, recording: Recording, api: Api, parser: Parser | None = None) -> None:
        super().__init__(recording, api, parser)
        self.waiting = False
        self.looped = False

    @property
    def gi_running(self) -> bool:
        """Whether a read is waiting for bytes now; a recording reads the same of the generators of other streams."""
        return self.waiting

    def entered(self, loop: object) -> None:
        """Note that `loop` reads the body."""
        self.looped = True
        self.recording.entered(loop)

    def left(self) -> None:
        """Note that a read was given up, perhaps to be tried again. A watched loop need not call this."""
        if not self.looped:
            self.recording.entered(_Loop())


def error_of(chunk: object) -> str | None:
    """Return the kind of an event's error, None where it has none; never the server's message."""
    name = getattr(chunk, "type", None)
    if name == MESSAGE_END:
        reason = getattr(getattr(chunk, "delta", None), "finish_reason", None)
        return reason if reason in FAILURES else None
    error = getattr(getattr(chunk, "response", None) if name == FAILED else chunk, "error", None)
    if error is None and name not in ("error", FAILED):
        return None
    words = getattr(error, "type", None), getattr(error, "code", None), *(getattr(chunk, n, None) for n in _ERROR_NAMES)
    for word in words:
        if isinstance(word, str | int) and _ERROR_TYPE.fullmatch(str(word)):
            return str(word)
    return "_OTHER"
