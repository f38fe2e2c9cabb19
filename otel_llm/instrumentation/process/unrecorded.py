"""Streamed replies that pass unrecorded: counted, and one warning a process with the remedy.

Any hook that sees an HTTP answer of an unknown API may call `answered`. It considers only answers to a POST whose
content type is a stream's, and counts those whose request looks like a prompt: event streams of other kinds (MCP and
A2A, which are JSON-RPC; GraphQL; images, audio) are not meant.
"""

from __future__ import annotations

import atexit
import logging
import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_llm.export import host_log
from otel_llm.export.host_log import Shown, shown
from otel_llm.instrumentation.core.suppressing import is_nested
from otel_llm.instrumentation.parse.sse_chunks import api_of, media_type
from otel_llm.instrumentation.parse.wires import WIRES

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.instrumentation.core.stats import Stats

STREAMED: Final = ("text/event-stream", "application/x-ndjson", "application/ndjson", "application/jsonl")
"""Content types of streamed replies."""
PROMPT_KEYS: Final = ("messages", "message", "prompt", "contents", "input", "inputs", "question", "query", "text")
MAX_BODY_BYTES: Final = 1 << 20
"""A longer request is not parsed, and so not counted."""
SETTLES_NS: Final = 1_000_000_000
"""How long after the answer `track` may still claim the stream."""

_PROMPT: Final = re.compile(rb'"(?:' + "|".join(PROMPT_KEYS).encode() + rb')"\s*:')
_JSON_RPC: Final = re.compile(rb'"jsonrpc"\s*:')
_OTHERS: Final = re.compile(r"/graphql|/images/|/audio/|/embeddings|/v1/(?:traces|metrics|logs)$")
_VARIES: Final = re.compile(r"(?<=/)[0-9a-fA-F-]{8,}(?=/|$)|\d{4,}")
"""Parts of a path that differ from request to request."""
WARNING_BEGINS: Final = "otel_llm did not record a streamed reply"
_WARNING: Final = (
    f"{WARNING_BEGINS}: %s. Wrap what reads it in otel_llm.track(...); "
    "see docs/stacks/not-recorded.md. Others are only counted: `otel-llm doctor -- COMMAND` lists them."
)
_SUPPRESSED: Final = (
    "otel_llm did not record a streamed reply of %s: instrumentation was suppressed around the call. "
    "If another instrumentation did that, see docs/stacks/not-recorded.md. This is said once for each stack."
)


@dataclass(slots=True, eq=False)
class _Passed:
    """One stream that passed; `claimed`: the application records it by `track`."""

    what: Shown
    at_ns: int
    claimed: bool = False


_latest: Final[ContextVar[_Passed | None]] = ContextVar("otel_llm_passed", default=None)
"""The last stream of this context."""


class Unrecorded:
    """The streams of one process that passed unrecorded, counted; the first one gives a warning.

    The warning waits until the next such stream, a second later at least, or the process's end: an application that
    follows its advice calls `track` after the answer, and then gets no warning.
    """

    def __init__(self, stats: Stats, clock_ns: Callable[[], int]) -> None:
        self._stats = stats
        self._clock_ns = clock_ns
        self._first: _Passed | None = None
        self._warned = False
        self._suppressed: set[str] = set()

    def suppressed(self, stack: str) -> None:
        """Say the first reply of a stack that is not recorded because telemetry is suppressed."""
        if stack not in self._suppressed:
            self._suppressed.add(stack)
            host_log.warning(_SUPPRESSED, stack)

    def answered(self, library: str, host: str | None, path: str, body: object, content_type: str) -> None:
        """Count an answer to a POST that no hook records; never raises.

        `body`: the request's JSON, as bytes, text or the object; any other cannot be judged. `library` is the client
        library.
        """
        try:
            kind = media_type(content_type)
            if kind not in STREAMED or is_nested() or not is_instrumentation_enabled():
                return
            if api_of(path, WIRES) is None and is_prompt(
                path, body
            ):  # a known API that is not recorded has its own warning
                where = f"{shown(host or '')}{shown(_VARIES.sub('*', path))}"
                self._pass(Shown(f"POST {where} ({kind}) over {library}"))
        except Exception as bug:  # noqa: BLE001
            host_log.say(logging.DEBUG, "otel_llm could not judge an answer: %s", bug)

    def claim(self) -> None:
        """Note that `track` records the last stream of this context."""
        passed = _latest.get()
        if passed is None:
            return
        _latest.set(None)
        if not passed.claimed and self._clock_ns() - passed.at_ns < SETTLES_NS:
            passed.claimed = True
            self._stats.pass_by(passed.what, -1)

    def complete(self) -> None:
        """Warn now of the first stream, unless `track` claimed it."""
        first = self._first
        if first is None or first.claimed or self._warned:
            return
        self._warned = True
        host_log.warning(_WARNING, first.what)

    def _pass(self, what: Shown) -> None:
        self._stats.pass_by(what)
        passed = _Passed(what, self._clock_ns())
        _latest.set(passed)
        first = self._first
        if first is None:
            atexit.register(self.complete)
        if first is None or first.claimed:
            self._first = passed
        elif passed.at_ns - first.at_ns >= SETTLES_NS:
            self.complete()


def is_prompt(path: str, body: object) -> bool:
    """Return whether a request looks like one for a model's reply."""
    if _OTHERS.search(path) is not None:
        return False
    if isinstance(body, dict):
        return "jsonrpc" not in body and any(key in body for key in PROMPT_KEYS)
    if isinstance(body, str):
        body = body.encode("utf-8", "replace")
    if not isinstance(body, bytes | bytearray) or len(body) > MAX_BODY_BYTES:
        return False
    # A match of a key is a key: inside a JSON string every quotation mark has a backslash before it.
    start = bytes(body[:64]).lstrip()
    return start.startswith(b"{") and _PROMPT.search(body) is not None and _JSON_RPC.search(body) is None
