"""Endpoints of the application's own, such as `/chat`: their paths, and the recording of their replies."""

from __future__ import annotations

import json
import re
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.parse.callback_reader import CallbackReader
from otel_llm.instrumentation.parse.messages import MessagesReader
from otel_llm.instrumentation.parse.responses import ResponsesReader
from otel_llm.instrumentation.parse.sse_chunks import DONE, Api, TextReader, View, api_of, viewed
from otel_llm.instrumentation.segments import outcomes
from otel_llm.instrumentation.segments.chunks import FRAMING, sized_mark, text_of_delta
from otel_llm.instrumentation.segments.stated_errors import ERROR, error_of
from otel_llm.instrumentation.segments.statements import Statements
from otel_llm.instrumentation.segments.text_size import UNSIZED, size_of
from otel_llm.instrumentation.server.exchange import Exchange
from otel_llm.instrumentation.server.forms import Pieces, form_of
from otel_llm.instrumentation.server.http_headers import content_coding, header, media_type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_llm.instrumentation.server.forms import Chunk, Form
    from otel_llm.instrumentation.server.http_headers import Headers

    Kind = Callable[[str], str | None]
    Count = Callable[[str], int]
    Model = str | Callable[[dict[str, Any] | None], str | None]
    from collections.abc import Callable

    from otel_llm.instrumentation.segments.chunks import Mark, Reading

    Members = dict[str, Any]

TEXTS: Final = (
    *("delta", "token", "text", "content", "word", "response", "message", "answer", "reply", "completion", "output"),
    *("output_text", "generated_text", "chunk", "data", "value", "parts"),
)
"""Members with text of content, or with an object or a list that has it; the first with text counts.

What is new comes before what may repeat the whole reply.
"""
THOUGHTS: Final = ("reasoning", "reasoning_content", "thinking", "thought", "thoughts")
"""Members with text of reasoning; `true` says that the text beside it is."""
ARGUMENTS: Final = ("arguments", "args", "partial_json", "input")
"""Members with the text of a tool call."""
SORTS: Final = ("type", "kind", "event")
"""Members that name the sort of a chunk, as the name of a server-sent event does."""
OTHER_ROLES: Final = frozenset({"user", "system", "developer", "tool", "function"})
"""Values of `role` whose text is not the model's."""
COMPLETE: Final = frozenset({"done", "end", "complete", "completed", "finish", "finished", "stop", "message_stop"})
"""Names of chunks behind which nothing follows."""
ENDS: Final = ("done", "finished")
"""Members that say so if they are `true`."""
_FRAMING: Final = frozenset(
    {
        *("done", "end", "ended", "complete", "completed", "finish", "finished", "stop", "stopped", "close", "closed"),
        *("start", "started", "open", "opened", "connected", "init", "ping", "heartbeat", "keepalive", "alive"),
        *("meta", "metadata", "usage", "status", "progress", "log", "debug", "title", "source", "sources"),
        *("citation", "citations", "result", "results", "image", "images", "audio", "video", "file", "files"),
    }
)
_REASONING: Final = frozenset({"reasoning", "thinking", "thought", "thoughts"})
_TOOL: Final = frozenset({"tool", "tools", "function"})
_NOT_OF_THE_MODEL: Final = frozenset({"output", "response"})
"""Words in the sort of a tool's chunk that is not the model's."""
_WORD: Final = re.compile(r"[a-z]+")
_MESSAGES: Final = frozenset(
    {
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    }
)
_BEGINS: Final = ("message_start", "response.created")
"""The first event of a known API's reply."""
_COMPLETIONS: Final = ("chat.completion", "text_completion")
MAX_DEPTH: Final = 4
"""Objects within each other in which text is looked for."""


class OwnReader:
    """A reader of one reply's chunks.

    `seen`: there was a chunk. `failure`: the kind of the error that the newest one reported. `complete`: the newest
    ones say that nothing follows.
    """

    plain = False

    def __init__(self, kind: Callable[[str], str | None] | None, count: Callable[[str], int] | None) -> None:
        self._callbacks = CallbackReader(kind, count, "exact") if kind or count else None
        self._counts = count is not None
        self._api: TextReader | MessagesReader | ResponsesReader | None = None
        self.reported = Statements()
        self.failure: str | None = None
        self.seen = self.complete = False
        self._several = False  # whether the reply holds several replies of a known API

    def plain_size(self, chunk: object) -> int:  # noqa: ARG002
        """Return 0: nothing is known of a chunk before it is read."""
        return 0

    def basis(self, choice: int) -> str:
        """Return the basis of a choice's token counts."""
        reader = self._callbacks or self._api
        return "chunk" if reader is None else reader.basis(choice)

    def __call__(self, chunk: Any) -> Reading:
        """Return what a `Chunk` carries."""
        text, name = chunk
        if text.strip() == DONE.decode():
            self.complete = True
            return FRAMING
        self.seen = True
        value = _json(text)
        members = value if isinstance(value, dict) else {}
        if name in _MESSAGES:
            members.setdefault("type", name)
        sorts = {name.lower(), _sort(members).lower()}
        try:
            view = viewed(members)
        except RecursionError:
            return FRAMING
        self.failure = error_of({**members, "type": ERROR} if ERROR in sorts else members)
        if self._callbacks is not None:
            return FRAMING if self.failure else self._called(self._callbacks, text, value)
        if (reading := self._of_api(members, view)) is not None or self.failure:
            return reading or FRAMING
        reading = _marks(_kind(name), value, text)
        if sorts & COMPLETE or any(members.get(end) is True for end in ENDS):
            self.complete = True
        elif reading:
            self.complete = False
        return reading

    def _called(self, reader: CallbackReader, text: str, value: object) -> Reading:
        """Return the reading by callbacks; the size of an object's text is that of its known members."""
        reading = reader(text)
        if self._counts or not reading or reading[0][2] != -UNSIZED:
            return reading
        size = sum(-mark[2] for mark in _marks(CONTENT, value, text))
        return sized_mark(reading[0][1], size) if size else reading

    def _of_api(self, members: Members, view: View) -> Reading | None:
        """Return the reading of a chunk of a known API, None for any other.

        The end of one such reply is not that of ours: an agent may pass several on.
        """
        kind = _api_of(members)
        if kind is None:
            return None
        begins = self.complete and (members.get("choices") or members.get("type") in _BEGINS)
        if self._api is None or type(self._api) is not kind or begins:
            self._api = kind()
            self._api.reported = self.reported
        marks = self._api(view)
        tokens = tuple((choice, code, count, False) for choice, code, count, _ in marks if count)
        self._several |= self.complete and bool(tokens)
        if self._several:  # what they state is of one of them
            self.reported.input_tokens = self.reported.output_tokens = self.reported.reasoning_tokens = None
        if marks:
            self.complete = any(finished for _, _, _, finished in marks)
        return tokens


def _json(text: str) -> object:
    """Return the value of a chunk that is a JSON object, list or string; None for any other text."""
    if text.lstrip()[:1] not in ("{", "[", '"'):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
    except RecursionError:
        return {}


def _api_of(members: Members) -> type[TextReader | MessagesReader | ResponsesReader] | None:
    """Return the reader of the known API that a chunk is of."""
    choices, sort = members.get("choices"), members.get("type")
    if isinstance(choices, list):
        stated = str(members.get("object", "")).startswith(_COMPLETIONS)
        if stated or (choices and all(isinstance(c, dict) and ("delta" in c or "text" in c) for c in choices)):
            return TextReader
    if isinstance(sort, str) and sort in _MESSAGES:
        return MessagesReader
    return ResponsesReader if isinstance(sort, str) and sort.startswith("response.") else None


def _sort(members: Members) -> str:
    return next((value for name in SORTS if isinstance(value := members.get(name), str)), "")


def _kind(sort: str) -> int | None:
    """Return the kind of a chunk by the words of its sort, None for framing."""
    words = set(_WORD.findall(sort.lower()))
    if words & _FRAMING or sort.lower() == ERROR:
        return None
    if words & _TOOL:
        return None if words & _NOT_OF_THE_MODEL else TOOL
    return REASONING if words & _REASONING else CONTENT


def _marks(kind: int | None, value: object, text: str) -> Reading:
    """Return the reading of a chunk whose event has this kind: of its JSON `value`, or of its text if that is None."""
    if kind is None:
        return FRAMING
    if value is None:
        return sized_mark(kind, size_of(text))
    sizes: dict[int, int] = {}
    _add(sizes, kind, value, MAX_DEPTH)
    marks: list[Mark] = [(0, code, -size, False) for code, size in sizes.items() if size]
    return tuple(marks)


def _add(sizes: dict[int, int], kind: int, value: object, depth: int) -> int:
    """Add the text of a JSON value by kind, and return its size."""
    if isinstance(value, str):
        size = size_of(value)
        sizes[kind] = sizes.get(kind, 0) + size
        return size
    if not depth:
        return 0
    if isinstance(value, list):
        return sum(_add(sizes, kind, one, depth - 1) for one in value)
    return _add_members(sizes, kind, value, depth) if isinstance(value, dict) else 0


def _add_members(sizes: dict[int, int], kind: int, members: Members, depth: int) -> int:
    own = _kind(_sort(members))
    role = members.get("role")
    if own is None or (isinstance(role, str) and role in OTHER_ROLES):
        return 0
    kind = own if kind == CONTENT else kind
    if any(members.get(name) is True for name in THOUGHTS):
        kind = REASONING
    total = 0
    for code, names in ((REASONING, THOUGHTS), (kind, ARGUMENTS if kind == TOOL else ()), (kind, TEXTS)):
        for name in names:
            if size := _add(sizes, code, members.get(name), depth - 1):
                total += size
                break
    if not total:
        called, total = text_of_delta(viewed(members))
        if called != TOOL:
            return 0
        sizes[TOOL] = sizes.get(TOOL, 0) + total
    return total


METHODS: Final = frozenset({"GET", "POST"})
NO_CONTENT: Final = 204
_STREAM_IT: Final = (
    "Take the path out of StreamMiddleware's paths, or stream the reply: as text/event-stream, application/x-ndjson, "
    "or text without Content-Length and Content-Encoding."
)
_NAME_IT: Final = "No chunk of it has a token by StreamMiddleware's `kind` and `count`: they say what counts."


class Own(NamedTuple):
    """An endpoint of the application's own; `pattern` is its path as given to the middleware.

    `model` is the name of the model, or returns it for the JSON object of a request, None if its body is none.
    """

    pattern: str
    api: Api
    model: Model | None = None


class Endpoints:
    """The recorded endpoints: those of the known APIs, and `paths`, each exact or with a trailing `*`.

    An exact path goes before a known API, and that before a path with `*`. Raises ValueError for anything else.
    """

    def __init__(
        self,
        paths: Iterable[str] = (),
        kind: Kind | None = None,
        count: Count | None = None,
        model: Model | None = None,
    ) -> None:
        if isinstance(paths, str):
            raise ValueError(f"paths={paths!r} is one text, not a list of paths")  # noqa: TRY004
        if not (model is None or isinstance(model, str) or callable(model)) or iscoroutinefunction(model):
            raise ValueError("model is a name, or a plain function of a request to the paths")
        api = Api("chat", lambda: OwnReader(kind, count))
        self._exact: dict[str, Own] = {}
        self._beginnings: list[tuple[str, Own]] = []
        for path in paths:
            beginning = path.removesuffix("*")
            if not path.startswith("/") or "*" in beginning:
                raise ValueError(f"paths: {path!r} is no path that begins with / and has no * but at its end")
            if beginning == path:
                self._exact[path] = Own(path, api, model)
            else:
                self._beginnings.append((beginning, Own(path, api, model)))
        if (kind or count or model) and not (self._exact or self._beginnings):
            raise ValueError("kind, count and model are for paths, and there are none")

    def find(self, method: str, path: str) -> Api | Own | None:
        """Return the recorded endpoint of a request, None for others."""
        own = self._exact.get(path)
        if own is None:
            api = api_of(path) if method == "POST" else None
            if api is not None or not self._beginnings:
                return api
            own = next((own for beginning, own in self._beginnings if path.startswith(beginning)), None)
        return own if method in METHODS else None


class OwnExchange(Exchange):
    """The exchange of an application's own endpoint; it is recorded once the reply's head shows a stream.

    Its request may be anything, so nothing is announced before. A POST that failed, or that its client left, counts as
    such a stream. A GET may be for a page: only a content type made for streams counts.
    """

    _text: OwnReader

    def __init__(self, *args: Any, own: Own, method: str, **more: Any) -> None:
        super().__init__(*args, api=own.api, **more)
        self._route = self._pattern = own.pattern
        self._posts = method == "POST"
        if isinstance(own.model, str):
            self._model = own.model
        self._name = own.model if callable(own.model) else None  # until it was called
        if self._name is None or not self._posts:
            self._request_body = None  # it may be anything
        self._form: Form | None = None
        self._reported = False  # whether a chunk was a token
        self.server_context.hold(self._recording())

    def _requested(self, members: dict[str, Any] | None) -> None:
        """Ask the application for the model's name; a failure of it costs the name alone."""
        name, self._name = self._name, None
        if name is None:
            return
        try:
            self._model = name(members)
        except Exception as bug:  # noqa: BLE001
            self._running.warn(bug)
        recording = self.server_context.recording
        if recording is not None and recording.announced:
            recording.identify(self._late())

    def _announce(self) -> None:
        if not self._posts:
            self._requested(None)  # no body follows
        self.server_context.announce(self._late())

    def starts(self, status: int, headers: Headers) -> None:
        """Apply the reply's head."""
        content_type = media_type_of(headers)
        form = form_of(content_type)
        fine = 200 <= status < 300 and status != NO_CONTENT
        if status >= 400 and self._posts:
            self._refused(status)
        elif not fine or form is None or self._is_whole(form, headers):
            if self._posts and fine and self.server_context.open:
                self._running.refuse_reply(self._pattern, content_type, _STREAM_IT)
            self._give_up()
        elif self._form is None:
            self._form = form()
            self._announce()

    def sends(self, body: bytes) -> None:
        """Apply a piece of the reply, which is about to be sent."""
        if self._form is not None:
            self._count(self._form.feed(body))

    def _is_whole(self, form: Callable[[], Form], headers: Headers) -> bool:
        if content_coding(headers):
            return True
        return form is Pieces and (not self._posts or header(headers, (b"content-length",)) is not None)

    def _read_rest(self) -> None:
        """Apply what the reply's end left unfinished."""
        if self._form is not None:
            self._count(self._form.end())
            if self.server_context.open and self._text.seen and not self._reported:
                self._running.refuse_reply(self._pattern, "streamed", _NAME_IT)

    def _complete(self) -> None:
        if self._form is not None or self._posts:
            self._requested(None)  # of a body that was not read
        if self._form is not None:
            return
        if self._posts:  # it failed before its head, or its client left: a user waited for a stream
            self._announce()
        else:
            self._give_up()

    def _give_up(self) -> None:
        recording = self.server_context.recording
        if recording is not None and not recording.done:
            recording.give_up()

    def left(self) -> None:
        """Note that the client left: after the chunk that says that nothing follows, it had all."""
        if self._form is not None and self._text.complete and not self._last:
            self.completed()
        super().left()

    def _count(self, chunks: list[Chunk]) -> None:
        recording = self.server_context.recording
        if recording is None or recording.done:
            return
        now_ns = recording.last_byte_ns = recording.clock_ns()
        if not chunks or self.server_context.reader.adopted:
            return
        for chunk in chunks:
            if reading := self._text(chunk):
                self._reported = True
                recording.append((now_ns, reading))
            if self._text.failure is not None:
                self._end(outcomes.ERROR, self._text.failure)
                return
