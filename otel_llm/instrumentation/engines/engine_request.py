"""A request in the engine that serves it: every token counted, at the engine's own times.

An engine's plugin begins one `Generation` a request. If our ASGI middleware records the same request already, the
tokens go to its recording and the middleware decides how the request ended, since only it sees the client leave: one
request is one row.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opentelemetry import context as otel_context

from otel_llm import semconv
from otel_llm.export.records import CONTENT, REASONING
from otel_llm.instrumentation.core import server_context
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.suppressing import is_nested
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.request import request_builder
from otel_llm.instrumentation.request.wishes import Wishes
from otel_llm.instrumentation.segments.outcomes import ERROR
from otel_llm.instrumentation.segments.statements import Statements
from otel_llm.instrumentation.segments.token_estimate import MOST_A_CHUNK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.core.server_context import ServerContext
    from otel_llm.instrumentation.process.runtime import Runtime
    from otel_llm.instrumentation.segments.chunks import Reading


class EngineReader:
    """The facts of a reply in an engine: counts are exact, since each token was counted where it was made.

    `doubted`: a step of the engine stated more tokens than are believed.
    """

    plain = False

    def __init__(self) -> None:
        self.reported = Statements()
        self.reported.output_tokens = 0
        self.doubted = False

    def plain_size(self, chunk: object) -> int:  # noqa: ARG002
        """Return 0: an engine may make several tokens in a step."""
        return 0

    def __call__(self, chunk: object) -> Reading:
        """Raise: engines have no chunks."""
        raise NotImplementedError

    def basis(self, choice: int) -> str:  # noqa: ARG002
        """Return the basis of the token counts."""
        return "estimated" if self.doubted else "exact"

    def count(self, tokens: int) -> None:
        """Count tokens that the engine made."""
        self.reported.output_tokens = (self.reported.output_tokens or 0) + tokens


class Generation:
    """One request in an engine; it ends once, and later calls do nothing.

    Its methods may be called from any thread, one at a time. They do not raise: a failure stops the recording, once
    with a warning, never the engine.
    """

    __slots__ = ("_reader", "_recording", "_unfinished", "_upstream")

    def __init__(
        self, recording: Recording, reader: EngineReader | None, choices: int = 1, upstream: ServerContext | None = None
    ) -> None:
        self._recording = recording
        self._reader = reader
        self._unfinished = choices
        self._upstream = upstream

    @property
    def done(self) -> bool:
        """Return whether the recording has stopped."""
        return self._recording.done

    @property
    def complete(self) -> bool:
        """Return whether all choices are complete."""
        return self._unfinished <= 0

    def tokens(self, now_ns: int, count: int, choice: int = 0, reasoning: int = 0) -> None:
        """Note that `count` tokens were made by `now_ns` (monotonic), the first `reasoning` of them reasoning.

        An engine's number is no list of tokens: beyond `MOST_A_CHUNK` it is not believed.
        """
        recording = self._recording
        try:
            if count > MOST_A_CHUNK:
                count, reasoning = MOST_A_CHUNK, min(reasoning, MOST_A_CHUNK)
                if self._reader is not None:
                    self._reader.doubted = True
                elif self._upstream is not None:
                    self._upstream.reader.doubted = True
            kind = CONTENT
            if self._reader is not None:
                self._reader.count(count)
            elif self._upstream is not None:
                kind = self._upstream.kind
            if count == 1 and kind == CONTENT and not (reasoning or choice):
                recording.append(now_ns)
                return
            marks: Reading = ((choice, REASONING, reasoning, False),) if reasoning else ()
            if count > reasoning:
                marks += ((choice, kind, count - reasoning, False),)
            if marks:
                recording.append((now_ns, marks))
        except Exception as bug:  # noqa: BLE001
            recording.broken(bug)

    def prompt(self, tokens: int) -> None:
        """Note the number of prompt tokens, unless it was known at the commit."""
        if self._reader is not None:
            self._reader.reported.input_tokens = tokens
        elif self._upstream is not None:
            self._upstream.reader.input_tokens = tokens

    def facts(self, more: Mapping[str, AttributeValue]) -> None:
        """Add attributes to the request span."""
        self._recording.attributes(more)

    def finished(self, now_ns: int, choice: int = 0, reason: str | None = None) -> None:
        """Note that a choice is complete; the request is once all of them are."""
        self._unfinished -= 1
        if self._reader is None:  # the middleware decides
            return
        self._reader.reported.finish(choice, reason)
        if self._unfinished <= 0:
            self._recording.exhausted()
        elif not self.done:
            self._recording.append((now_ns, ((choice, CONTENT, 0, True),)))

    def cancelled(self) -> None:
        """Note that the requester no longer wants the reply."""
        if self._reader is not None:
            self._recording.closed()

    def failed(self, error: str | BaseException) -> None:
        """Note a failure: an exception, or an `error.type`."""
        if self._reader is None:
            return
        if isinstance(error, BaseException):
            self._recording.failed(error)
        else:
            self._recording.ended(ERROR, error)


def begin(
    running: Runtime,
    *,
    operation: str,
    model: str | None,
    request_id: str | None,
    stream: bool,
    context: Context | None = None,
    commit_ns: int | None = None,
    choices: int = 1,
    input_tokens: int | None = None,
    shared: bool = False,
) -> Generation | None:
    """Return the generation of a request that reached an engine now, None if another recording has it.

    `shared`: it is one of several requests of one call, so its tokens cannot be assigned to a choice of that call.
    Raises nothing.
    """
    try:
        upstream = server_context.current_server_context()
        if upstream is not None:
            if upstream.recording is None or upstream.recording.done or shared or choices > 1:
                return None
            upstream.adopt()
            upstream.reader.input_tokens = input_tokens
            if request_id is not None:
                upstream.recording.identify({semconv.GEN_AI_REQUEST_ID: request_id})
            return Generation(upstream.recording, None, upstream=upstream)
        if is_nested():
            return None
        own = otel_context.get_current() if context is None else context
        request = request_builder.request(
            running,
            own,
            operation=operation,
            model=model,
            gen_ai={semconv.GEN_AI_REQUEST_STREAM: stream, semconv.GEN_AI_USAGE_INPUT_TOKENS: input_tokens},
            # On segment 0 too: a running request can be aborted by its id.
            ours={
                semconv.INSTANCE: os.environ.get(request_builder.INSTANCE_VARIABLE) or None,
                semconv.GEN_AI_REQUEST_ID: request_id,
            },
            commit_ns=commit_ns,
            wishes=Wishes(choices),
            server=True,
            stack="engine",
        )
        reader = EngineReader()
        recording = Recording(running, request, reader)
        recording.announce(own)
        return Generation(recording, reader, choices)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None
