"""One line of a backend's reply, read but not yet written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_llm.relay.splice.chunk import Choice, Chunk, Kind
    from otel_llm.relay.splice.stated_error import StatedError


class Line:
    """A line of a reply, or the lines of one event, with the blank lines behind it.

    Of several lines `flat` has all data in one line, and `before` has the other lines; one line is its own `flat`.
    `ids`: its token ids; `at`: the index of the first of them in the reply. `text`: its text of any kind for the
    reader. `tokens`: the counts for a recorder, (index, number, kind, choice): ids of a choice that were not counted
    before, each once. `texts`: the choices with a text without ids, for a recorder to estimate its tokens. `goes_on`: a
    choice has text behind its finish reason, which was not its last. `finish`: the finish reason; `aborted`: that of a
    choice that failed. `ends`: the newest finish reason, if the reply is whole by then. `error`: of an error event.
    `done`: `[DONE]`, and `done_without_finish` if that is a break, since a choice has not finished by then.
    """

    __slots__ = (
        "aborted",
        "at",
        "before",
        "chunk",
        "done",
        "done_without_finish",
        "ends",
        "error",
        "finish",
        "flat",
        "gap",
        "goes_on",
        "ids",
        "raw",
        "text",
        "texts",
        "tokens",
        "trouble",
    )

    def __init__(self, raw: bytes, trouble: str | None = None) -> None:
        self.raw = raw
        self.flat = raw
        self.before = b""
        self.gap = b""
        self.chunk: Chunk | None = None
        self.ids: list[int] = []
        self.at = 0
        self.text = ""
        self.tokens: list[tuple[int, int, Kind, Choice]] = []
        self.texts: list[Choice] = []
        self.goes_on = False
        self.finish: str | None = None
        self.aborted: str | None = None
        self.ends: str | None = None
        self.error: StatedError | None = None
        self.done = False
        self.done_without_finish = False
        self.trouble = trouble
        """Why a stream with this line is no longer resumable, if its chunk does not show it."""


def ending_of(raw: bytes) -> bytes:
    """Return the ending of a line."""
    return raw[len(raw.rstrip(b"\r\n")) :]
