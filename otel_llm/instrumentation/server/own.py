"""Endpoints of the application's own, such as `/chat`: their paths, and the recording of their replies."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.instrumentation.parse.sse_chunks import Api, api_of
from otel_llm.instrumentation.segments.outcomes import ERROR
from otel_llm.instrumentation.server.exchange import Exchange
from otel_llm.instrumentation.server.forms import Pieces, form_of
from otel_llm.instrumentation.server.http_headers import content_coding, header, media_type_of
from otel_llm.instrumentation.server.own_reader import OwnReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_llm.instrumentation.server.forms import Chunk, Form
    from otel_llm.instrumentation.server.http_headers import Headers

    Kind = Callable[[str], str | None]
    Count = Callable[[str], int]
    Model = str | Callable[[dict[str, Any] | None], str | None]

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
            self._asking = None  # it may be anything
        self._form: Form | None = None
        self._told = False  # whether a chunk was a token
        self.server_context.hold(self._recording())

    def _asked(self, asked: dict[str, Any] | None) -> None:
        """Ask the application for the model's name; a failure of it costs the name alone."""
        name, self._name = self._name, None
        if name is None:
            return
        try:
            self._model = name(asked)
        except Exception as bug:  # noqa: BLE001
            self._running.warn(bug)
        recording = self.server_context.recording
        if recording is not None and recording.announced:
            recording.identify(self._late())

    def _announce(self) -> None:
        if not self._posts:
            self._asked(None)  # no body follows
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
            if self.server_context.open and self._text.seen and not self._told:
                self._running.refuse_reply(self._pattern, "streamed", _NAME_IT)

    def _settle(self) -> None:
        if self._form is not None or self._posts:
            self._asked(None)  # of a body that was not read
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
                self._told = True
                recording.append((now_ns, reading))
            if self._text.failure is not None:
                self._end(ERROR, self._text.failure)
                return
