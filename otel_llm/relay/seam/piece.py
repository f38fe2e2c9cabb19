"""One line of a backend's reply, read but not yet written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_llm.relay.seam.chunk import Choice, Chunk, Kind


class Piece:
    """A line of a reply, with the blank lines behind it.

    `ids`: its token ids; `at`: the index of the first of them in the reply. `text`: its text of any kind for the
    reader. `tokens`: the counts for a recorder, (index, number, kind, choice): ids of a choice that were not counted
    before, each once. `texts`: the choices with a text without ids, for a recorder to estimate its tokens. `finish`:
    the finish reason; `aborted`: it is `abort`. `ends`: the newest finish reason, if every choice has one by then.
    `error`: an error event. `done`: `[DONE]`, and `done_without_finish` if a choice has not finished by then.
    """

    __slots__ = (
        "aborted",
        "at",
        "chunk",
        "done",
        "done_without_finish",
        "ends",
        "error",
        "finish",
        "gap",
        "ids",
        "line",
        "text",
        "texts",
        "tokens",
        "trouble",
    )

    def __init__(self, line: bytes) -> None:
        self.line = line
        self.gap = b""
        self.chunk: Chunk | None = None
        self.ids: list[int] = []
        self.at = 0
        self.text = ""
        self.tokens: list[tuple[int, int, Kind, Choice]] = []
        self.texts: list[Choice] = []
        self.finish: str | None = None
        self.aborted = False
        self.ends: str | None = None
        self.error = False
        self.done = False
        self.done_without_finish = False
        self.trouble: str | None = None
        """Why a stream with this line is no longer resumable, if its chunk does not show it."""
