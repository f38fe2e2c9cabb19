"""Record the body of a streamed reply as it passes: bytes in, token times into a recording. Keeps no content.

For hooks that see bytes only: HTTP clients, and the middleware of a server. Chunks are counted by the rules of the
SDKs' readers, which see the JSON of a chunk as if it were an SDK's object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from otel_llm.export.host_log import HostLog
from otel_llm.export.records import CONTENT
from otel_llm.instrumentation.parse.event_template import TEXT_STRING, EventTemplate
from otel_llm.instrumentation.parse.json_bodies import SniffedBody
from otel_llm.instrumentation.parse.messages import MessagesReader
from otel_llm.instrumentation.parse.responses import ResponsesReader
from otel_llm.instrumentation.parse.sse import Event
from otel_llm.instrumentation.segments.chunks import FRAMING, ChunkReader, sized_mark
from otel_llm.instrumentation.segments.outcomes import COMPLETED, DISCONNECTED, ERROR
from otel_llm.instrumentation.segments.stated_errors import error_of
from otel_llm.instrumentation.segments.text_size import size_of_json_string

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.instrumentation.parse.sse import Parser, Whole
    from otel_llm.instrumentation.segments.choices import Item, Reader
    from otel_llm.instrumentation.segments.chunks import Reading

DONE: Final = b"[DONE]"
UNKNOWN_FORM: Final = "unknown_form"
"""The `error.type` of a reply that is read by nothing else, and of no form that its path has."""

_CONTENT: Final = re.compile(rb'"delta": ?\{(?:"role": ?(?:"assistant"|null), ?)?"content": ?' + TEXT_STRING, re.DOTALL)
_TEXT: Final = re.compile(rb'"text": ?' + TEXT_STRING, re.DOTALL)
_UNFINISHED: Final = re.compile(rb'"finish_reason": ?null')
_FIRST: Final = re.compile(rb'"index": ?0[,}\s]')


_KNOWN: Final = frozenset(
    ("choices", "type", "candidates", "usageMetadata", "promptFeedback", "usage", "message", "token", "done", "object")
)
"""Members that a chunk of one of the APIs has at least one of."""


def plain_size(event: bytes, text: re.Pattern[bytes]) -> int:
    """Return the size of an event that is plain text of choice 0, if the server is known to count no tokens; else 0.

    Decided from the bytes, at a small part of a parse's cost. Safe, since inside a JSON string every quotation mark has
    a backslash before it: a match of a key with its colon is one. In doubt, 0, as for an event of several lines, which
    may be more than one object. `text` matches the text.
    """
    if event[:1] != b"{" or event[-1:] != b"}" or b"\n" in event:
        return 0
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


_host_log: Final = HostLog()
_decoder: Final = json.JSONDecoder(object_hook=View)


class TextReader(ChunkReader):
    """A reader of text completions: the text is in the choice itself."""

    __slots__ = ()

    def __call__(self, chunk: Any) -> Reading:
        """Return the reading of a chunk."""
        choices = getattr(chunk, "choices", None)
        if not isinstance(choices, list) and isinstance(chunk, View):
            self._native(chunk.__dict__)
            choices = chunk.__dict__.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, View):
                choice.__dict__.setdefault("delta", View({"content": choice.__dict__.get("text")}))
        return super().__call__(chunk)

    @staticmethod
    def _native(members: dict[str, Any]) -> None:
        """Give llama.cpp's own chunk, which has `content` and `stop`, the choice that it stands for."""
        if isinstance(members.get("stop"), bool) and "content" in members:
            reason = (members.get("stop_type") or "stop") if members["stop"] else None
            members["choices"] = [View({"text": members["content"], "index": 0, "finish_reason": reason})]
            if members["stop"]:
                members["usage"] = View(
                    {
                        "completion_tokens": members.get("tokens_predicted"),
                        "prompt_tokens": members.get("tokens_evaluated"),
                    }
                )


def event_of(data: bytes, text: re.Pattern[bytes] | None, reader: Reader) -> Event | None:
    """Read the data of an event for a reader: the size of a plain text, `DONE`, or a `View`.

    None for what is no JSON object: malformed, or only a part of one.

    `text` matches the text of a plain chunk, if the API allows that.
    """
    if text is not None and reader.plain and (size := plain_size(data, text)):
        return Event(data, size)
    if data.strip() == DONE:
        return Event(data, DONE)
    try:
        value = _decoder.decode(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):  # malformed, or nested too deeply
        return None
    return Event(data, value) if isinstance(value, View) else None


MakeParser = Callable[["Whole"], "Parser"]
"""Makes a parser of one body."""
SSE: Final[Mapping[str, MakeParser]] = {"text/event-stream": SniffedBody}


class Api(NamedTuple):
    """One kind of streamed reply: its operation in the conventions, its reader, and its provider.

    `text` matches the text of a plain chunk, if a reader allows that. `streams_by` is how a request asks for a stream:
    `"stream": true` in its body (`flag`), its path (`path`), no `"stream": false` there (`default`). `parsers` has the
    parser for each content type of a streamed answer; for any other the content decides.
    """

    operation: str
    reader: Callable[[], Reader]
    text: re.Pattern[bytes] | None = None
    provider: str = "openai"
    streams_by: Literal["flag", "path", "default"] = "flag"
    parsers: Mapping[str, MakeParser] = SSE


CHAT: Final = Api("chat", ChunkReader, _CONTENT)
COMPLETIONS: Final = Api("text_completion", TextReader, _TEXT)
RESPONSES: Final = Api("chat", ResponsesReader)
MESSAGES: Final = Api("chat", MessagesReader, provider="anthropic")
APIS: Final[tuple[tuple[str, Api], ...]] = (
    ("/chat/completions", CHAT),
    ("/completions", COMPLETIONS),
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
    reach the end of the body. Nothing here raises. `whole`: the body is one JSON text, which has no end of its own.
    """

    __slots__ = ("_parser", "_strange", "_template", "_text", "_whole", "recording")

    def __init__(
        self, recording: StreamRecorder, api: Api, parser: MakeParser = SniffedBody, *, whole: bool = False
    ) -> None:
        self.recording = recording
        self._text = api.text
        self._parser = parser(self._event)
        self._template = EventTemplate(self._parser)
        self._whole = whole
        self._strange: bool | None = None

    @property
    def between(self) -> bool:
        """Return whether the next byte begins a new event."""
        return self._parser.between

    @property
    def lost(self) -> int:
        """Return the number of events that were dropped for their length."""
        return self._parser.lost

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
            events: list[Event] = self._parser.feed(data)
            for event in events:
                reading = self._read(event, now_ns)
            self._template.learn(data, events, reading if recording.reader.plain else None)
        except Exception as bug:  # noqa: BLE001
            recording.broken(bug)

    def ended(self) -> None:
        """Note that the body ended: the reply was cut off, except for choices that were declared complete."""
        recording = self.recording
        if recording.done:
            return
        whole = False
        try:
            now_ns = recording.clock_ns()
            for event in self._parser.end():
                self._read(event, now_ns)
            whole = self._whole and self._parser.between
        except Exception as bug:  # noqa: BLE001
            recording.broken(bug)
        if self._strange and not self._whole and not recording.done:
            self._unread()
        recording.ended(COMPLETED if whole else DISCONNECTED)

    def _unread(self) -> None:
        """Note that nothing in the body is known of the API: it is a reply of another form."""
        self.recording.ended(ERROR, UNKNOWN_FORM)

    def _event(self, data: bytes) -> Event | None:
        return event_of(data, self._text, self.recording.reader)

    def _read(self, event: Event, now_ns: int) -> Reading:
        """Record the tokens of an event, and return its reading."""
        recording, value = self.recording, event.value
        if isinstance(value, int):
            self._strange = False
            recording.append((now_ns, value))
            return sized_mark(CONTENT, value)
        if isinstance(value, bytes):
            self._strange = False
            recording.exhausted()
            return FRAMING
        reading: Reading = recording.reader(value)
        recording.append((now_ns, reading))
        if (error := error_of(value)) is not None:
            recording.ended(ERROR, error)
        elif self._strange is not False:
            self._strange = not reading and _KNOWN.isdisjoint(value.__dict__)
        return reading


class Tap(ChunkTap):
    """The recording of one body in an application; it knows which loop reads it."""

    __slots__ = ("__weakref__", "looped", "waiting")

    recording: Recording

    def __init__(
        self, recording: Recording, api: Api, parser: MakeParser = SniffedBody, *, whole: bool = False
    ) -> None:
        super().__init__(recording, api, parser, whole=whole)
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

    def _unread(self) -> None:
        self.recording.give_up()
        _host_log.warning("otel_llm did not record a streamed reply: it has none of the forms known at its path")

    def left(self) -> None:
        """Note that a read was given up, perhaps to be tried again. A watched loop need not call this."""
        if not self.looped:
            self.recording.entered(_Loop())
