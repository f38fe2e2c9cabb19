"""What one reply says: token times, usage, its end; read by the rules of the application's own recorder."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from otel_llm.bench.client.counting_template import CountingTemplate
from otel_llm.export.records import CONTENT
from otel_llm.instrumentation.parse.json_bodies import SniffedBody
from otel_llm.instrumentation.parse.sse_chunks import ChunkTap
from otel_llm.instrumentation.segments.chunks import PLAIN, ChunkReader, sized_mark
from otel_llm.instrumentation.segments.model_chunks import ModelChunks
from otel_llm.instrumentation.segments.outcomes import COMPLETED, ERROR
from otel_llm.instrumentation.segments.token_estimate import TokenEstimate

if TYPE_CHECKING:
    from otel_llm.instrumentation.parse.sse_chunks import Api
    from otel_llm.instrumentation.segments.choices import Counted, Item
    from otel_llm.instrumentation.segments.chunks import Reading

MAX_EVENT_BYTES: Final = 1 << 25
"""The longest event that is read (32 MiB): a token of 10 MB is one token."""
CLOSED_EARLY: Final = "closed_early"
ERROR_EVENT: Final = "error_event"
TOO_LONG: Final = "event_too_long"
CLIENT_BUG: Final = "client_bug"


class Reply:
    """One streamed reply, a `StreamRecorder` whose clock stands at the read of the bytes at hand.

    `items` are the tokens since they were last taken; `end_ns` (monotonic) and `outcome` are None until it ended.
    """

    def __init__(self, api: Api) -> None:
        self.reader = api.reader()
        self.items: list[Counted] = []
        self.end_ns: int | None = None
        self.outcome: str | None = None
        self.error: str | None = None
        self.last_byte_ns = 0
        self._finished_ns: int | None = None
        self._tap = ChunkTap(self, api, partial(SniffedBody, most=MAX_EVENT_BYTES))
        self._template = CountingTemplate()
        self._newest: Reading = ()
        self._tokens = 0
        self._estimate = TokenEstimate(ModelChunks())

    def take(self, at_ns: int, data: bytes) -> None:
        """Read the next bytes of the body, which were read from the socket at `at_ns`."""
        self.last_byte_ns = at_ns
        begins = self._tap.between
        if begins and not self.done and self._template.of(data):
            assert isinstance(self.reader, ChunkReader)  # noqa: S101
            self.reader.count_one()
            self._tokens += 1
            self.items.append((at_ns, self._newest))
            return
        before = len(self.items)
        self._tap.take(data)
        if begins and self._tap.between and len(self.items) == before + 1 and not self.reader.plain:
            self._learn(data)
        else:
            self._template.forget()

    def _learn(self, data: bytes) -> None:
        newest = self.items[-1]
        if isinstance(newest, tuple) and len(newest[1]) == 1 and newest[1][0][2] == 1 and not newest[1][0][3]:
            self._newest = newest[1]
            self._template.learn(data, self._tokens)
        else:
            self._template.forget()

    def body_ended(self, at_ns: int) -> None:
        """Note the end of the body, or of the connection."""
        self.last_byte_ns = at_ns
        self._tap.ended()

    def fail(self, at_ns: int, outcome: str, error: str) -> None:
        """End it as failed, unless it has ended."""
        if not self.done:
            self.end_ns, self.outcome, self.error = at_ns, outcome, error

    @property
    def basis(self) -> str:
        """Return the basis of the token counts in `items`."""
        return self._estimate.basis(self.reader.basis(0))

    # For the tap.

    @property
    def done(self) -> bool:
        """Return whether it has ended."""
        return self.end_ns is not None

    def clock_ns(self) -> int:
        """Return when the bytes at hand were read."""
        return self.last_byte_ns

    def append(self, item: Item) -> None:
        """Take the tokens of a chunk; those of other choices are not counted."""
        at_ns, carries = item if isinstance(item, tuple) else (item, PLAIN)
        marks = sized_mark(CONTENT, carries) if isinstance(carries, int) else carries
        counted = []
        for choice, kind, count, finished in marks:
            if choice:
                continue
            if finished:
                self._finished_ns = at_ns
            if tokens := self._estimate.of(kind, count):
                counted.append((0, kind, tokens, finished))
                self._tokens += tokens
        if counted:
            self.items.append(at_ns if counted == [PLAIN[0]] else (at_ns, tuple(counted)))

    def exhausted(self) -> None:
        """Note `[DONE]`."""
        self._complete()

    def ended(self, outcome: str, error: str | None = None) -> None:
        """Note an event that says that the reply failed, or the end of the body."""
        if self._tap.lost:
            self.fail(self.last_byte_ns, ERROR, TOO_LONG)
        elif error is not None:
            self.fail(self.last_byte_ns, ERROR, ERROR_EVENT)
        elif self._finished_ns is not None:
            self._complete()
        else:
            self.fail(self.last_byte_ns, outcome, CLOSED_EARLY)

    def broken(self, bug: BaseException) -> None:  # noqa: ARG002
        """Note a failure of ours; it makes the run invalid."""
        self.fail(self.last_byte_ns, ERROR, CLIENT_BUG)

    def _complete(self) -> None:
        if self._tap.lost:
            self.fail(self.last_byte_ns, ERROR, TOO_LONG)
        elif not self.done:
            self.end_ns = self.last_byte_ns if self._finished_ns is None else self._finished_ns
            self.outcome = COMPLETED
