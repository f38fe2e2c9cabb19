"""The facts of a backend's answer that is no event stream, noted as it passes: a whole reply, an error, or neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.instrumentation.parse.sse_chunks import UNKNOWN_FORM
from otel_llm.instrumentation.segments.outcomes import COMPLETED, ERROR
from otel_llm.relay.attempts.run import OK
from otel_llm.relay.splice.upstream_response import TOO_LONG
from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from otel_llm.relay.attempts.run import Run
    from otel_llm.relay.recording.recorded import Recorded
    from otel_llm.relay.splice.line import Line


class PassedAnswer:
    """The answer of a run. A reply that comes at once, as JSON, has all of its tokens at that instant."""

    def __init__(self, run: Run, recorded: Recorded) -> None:
        self._run = run
        self._recorded = recorded
        self._reads = run.response.status == OK and not run.packed
        self._error: str | None = None
        self._whole = False

    async def seen(self, data: bytes) -> None:
        """Note the next bytes of the answer, b"" at its end."""
        if self._reads:
            for line in await self._run.lines(data):
                self._note(line)

    async def outcome(self, *, whole: bool) -> tuple[str, str | None]:
        """Return the outcome of the request and its `error.type`; `whole`: the client has all of the answer.

        An answer that is compressed, or too long to be read, completes the request without a token.
        """
        if not whole:
            return ERROR, "broken"
        if self._run.response.status != OK:
            return ERROR, str(self._run.response.status)
        await self.seen(b"")
        if self._error is not None:
            return ERROR, self._error
        if not self._reads:
            return COMPLETED, None
        return (COMPLETED, None) if self._whole else (ERROR, UNKNOWN_FORM)

    def _note(self, line: Line) -> None:
        chunk = line.chunk
        if line.trouble == TOO_LONG:
            self._reads = False
        if chunk is None:
            return
        at_ns = monotonic_ns()
        for index, count, kind, choice in line.tokens:
            self._recorded.tokens(at_ns, index, count, kind, choice.text, choice.stated)
        for choice in line.texts:
            self._recorded.text(at_ns, choice.index, choice.stated)
        self._recorded.noted(chunk, at_ns, continues=False)
        self._error = self._error or (line.aborted if line.error is None else line.error.kind)
        self._whole = self._whole or line.ends is not None
