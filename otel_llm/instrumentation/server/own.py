"""Endpoints of the application's own, such as `/chat`: their paths, and the recording of their replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from otel_llm.instrumentation.parse.callback_reader import CallbackReader
from otel_llm.instrumentation.parse.sse_chunks import Api, api_of
from otel_llm.instrumentation.server.exchange import Exchange, header, media_type_of
from otel_llm.instrumentation.server.forms import Pieces, form_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_llm.instrumentation.server.exchange import Headers
    from otel_llm.instrumentation.server.forms import Form

    Kind = Callable[[str], str | None]
    Count = Callable[[str], int]

METHODS: Final = frozenset({"GET", "POST"})
NO_CONTENT: Final = 204
_STREAM_IT: Final = (
    "Take the path out of StreamMiddleware's paths, or stream the reply: as text/event-stream, application/x-ndjson, "
    "or text without Content-Length and Content-Encoding."
)
_NAME_IT: Final = "StreamMiddleware's `kind` or `count` found no token in any of its chunks."


class Own(NamedTuple):
    """An endpoint of the application's own; `pattern` is its path as given to the middleware."""

    pattern: str
    api: Api


class Endpoints:
    """The recorded endpoints: those of the known APIs, and `paths`, each exact or with a trailing `*`.

    An exact path goes before a known API, and that before a path with `*`. Raises ValueError for anything else.
    """

    def __init__(self, paths: Iterable[str] = (), kind: Kind | None = None, count: Count | None = None) -> None:
        if isinstance(paths, str):
            raise ValueError(f"paths={paths!r} is one text, not a list of paths")  # noqa: TRY004
        api = Api("chat", lambda: CallbackReader(kind, count, "exact"))
        self._exact: dict[str, Own] = {}
        self._beginnings: list[tuple[str, Own]] = []
        for path in paths:
            beginning = path.removesuffix("*")
            if not path.startswith("/") or "*" in beginning:
                raise ValueError(f"paths: {path!r} is no path that begins with / and has no * but at its end")
            if beginning == path:
                self._exact[path] = Own(path, api)
            else:
                self._beginnings.append((beginning, Own(path, api)))
        if (kind or count) and not (self._exact or self._beginnings):
            raise ValueError("kind and count read the replies of paths, and there are none")

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

    reads_request: ClassVar[bool] = False

    def __init__(self, *args: Any, own: Own, method: str, **more: Any) -> None:
        super().__init__(*args, api=own.api, **more)
        self._pattern = own.pattern
        self._posts = method == "POST"
        self._form: Form | None = None
        self._seen = False  # whether there was a chunk
        self._told = False  # whether one of them was a token
        self.server_context.hold(self._recording())

    def take(self, body: bytes, *, more: bool) -> None:
        """Ignore the request's body: it is the application's own."""

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
            self.server_context.announce()

    def sends(self, body: bytes) -> None:
        """Apply a piece of the reply, which is about to be sent."""
        if self._form is not None:
            self._count(self._form.feed(body))

    def _is_whole(self, form: Callable[[], Form], headers: Headers) -> bool:
        encoded = header(headers, (b"content-encoding",)) not in {None, "identity"}
        return encoded or (form is Pieces and (not self._posts or header(headers, (b"content-length",)) is not None))

    def _settle(self) -> None:
        if self._form is not None:
            if self._over:
                self._count(self._form.end())
                if self._seen and not self._told and not self.server_context.reader.adopted:
                    self._running.refuse_reply(self._pattern, "streamed", _NAME_IT)
        elif self._posts:  # it failed before its head, or its client left: a user waited for a stream
            self.server_context.announce()
        else:
            self._give_up()

    def _give_up(self) -> None:
        recording = self.server_context.recording
        if recording is not None and not recording.done:
            recording.give_up()

    def _count(self, chunks: list[bytes]) -> None:
        recording = self.server_context.recording
        if recording is None or recording.done:
            return
        now_ns = recording.last_byte_ns = recording.clock_ns()
        if not chunks or self.server_context.reader.adopted:
            return
        self._seen = True
        for chunk in chunks:
            if reading := self._text(chunk.decode("utf-8", "replace")):
                self._told = True
                recording.append((now_ns, reading))
