"""Replies that a client recorded, each event with its time of arrival: find the tokens among the events.

The rules are those by which the instrumentation counts the same chunks live.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from otel_llm.core.limits import MAX_TOKENS
from otel_llm.formats.recordings.bench.measured import EntryError, count, json_of, lasted, member
from otel_llm.instrumentation.parse.messages import MessagesReader
from otel_llm.instrumentation.parse.responses import ResponsesReader
from otel_llm.instrumentation.parse.sse_chunks import DONE, TextReader, View
from otel_llm.instrumentation.segments.model_chunks import ModelChunks
from otel_llm.instrumentation.segments.token_estimate import TokenEstimate
from otel_llm.slo.classes import CONTENT
from otel_llm.slo.token_events import TokenEvents

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.recordings.bench.measured import MeasuredRequest
    from otel_llm.instrumentation.segments.choices import Reader

_decoder: Final = json.JSONDecoder(object_hook=View)
_ENGINE_MS: Final = ("queue_time_ms", "time_to_first_token_ms")
"""In `metrics` of vLLM's last chunk (0.33, `--enable-per-request-metrics`): in its queue, and from there to a token."""


@dataclass(slots=True)
class ReplyStream:
    """One choice of a reply: its token events (ns) as in `TokenEvents`, and how the tokens were counted."""

    choice: int = 0
    times_ns: list[int] = field(default_factory=list)
    kinds: bytearray = field(default_factory=bytearray)
    counts: list[int] = field(default_factory=list)
    token_basis: str = "chunk"  # noqa: S105
    estimate: TokenEstimate = field(default_factory=lambda: TokenEstimate(ModelChunks()))
    tokens: int = 0

    def add(self, at_ns: int, kind: int, tokens: int) -> None:
        """Add a chunk of tokens.

        Raises:
            EntryError: the reply would have more than MAX_TOKENS.
        """
        if tokens > MAX_TOKENS - self.tokens:
            raise EntryError(f"more than {MAX_TOKENS} tokens in one reply")
        if tokens:
            self.times_ns.append(at_ns)
            self.kinds.append(kind)
            self.counts.append(tokens)
            self.tokens += tokens

    @property
    def events(self) -> TokenEvents:
        """Return the token events."""
        one_each = self.tokens == len(self.times_ns)
        return TokenEvents(self.times_ns, bytes(self.kinds), None if one_each else self.counts)


@dataclass(slots=True)
class Reply:
    """A reply: its streams by choice (one without a token if none arrived), and what it states of tokens and times."""

    streams: list[ReplyStream]
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None

    def assembled(self, request: MeasuredRequest) -> list[Assembled]:
        """Return the streams of a request with this reply.

        Raises:
            EntryError: a time is out of the range of records.
        """
        alone = len(self.streams) == 1
        stated = replace(
            request,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens if alone else None,
            reasoning_tokens=self.reasoning_tokens if alone else None,
            queue_s=self.queue_s,
            prefill_s=self.prefill_s,
        )
        return [stated.timed(stream.events, stream.token_basis, choice=stream.choice) for stream in self.streams]


def read_events(events: Iterable[tuple[int, bytes]]) -> Reply:
    """Return the reply of events, (time in ns, data) each, in order of arrival.

    A chunk counts as one token if the server does not count; the total that the reply states resamples them later.

    Raises:
        EntryError: the events are those of an unknown API, or have more than MAX_TOKENS tokens.
    """
    reader: Reader | None = None
    streams: dict[int, ReplyStream] = {}
    unknown = False
    metrics: Any = None
    for at_ns, data in events:
        if data.strip() in (b"", DONE):
            continue
        try:
            chunk = _decoder.decode(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):  # a keep-alive, a cut event: no token of ours
            continue
        if reader is None:
            reader = _reader_of(chunk)
            unknown = unknown or reader is None
            if reader is None:
                continue
        metrics = getattr(chunk, "metrics", metrics)
        for choice, kind, tokens, _ in reader(chunk):
            stream = streams.setdefault(choice, ReplyStream(choice))
            stream.add(at_ns, kind, stream.estimate.of(kind, tokens))
    if reader is None:
        if unknown:
            raise EntryError("the chunks are those of an API that we do not know")
        return Reply([ReplyStream()])
    for stream in streams.values():
        stream.token_basis = stream.estimate.basis(reader.basis(stream.choice))
    found = sorted(streams.values(), key=lambda stream: stream.choice)
    engine = (lasted(getattr(metrics, name, None), 1e-3) for name in _ENGINE_MS)
    return Reply(found or [ReplyStream()], reader.reported.input_tokens, *reader.reported.total, *engine)


def read_whole(at_ns: int, body: str) -> Reply:
    """Return an unstreamed reply: all its tokens at its time, as many as the server counted.

    Raises:
        EntryError: it is no JSON object, or does not say how many tokens it has.
    """
    reply = json_of(body)
    if not isinstance(reply, dict):
        raise EntryError("the reply is no JSON object")
    usage = member(reply, "usage")
    tokens = count(member(usage, "completion_tokens"))
    if tokens is None:
        tokens = count(member(usage, "output_tokens"))
    if tokens is None or tokens > len(body):
        raise EntryError("the reply came in one piece and does not say how many tokens it has")
    prompt = count(member(usage, "prompt_tokens"))
    whole = ReplyStream(token_basis="exact")  # noqa: S106
    whole.add(at_ns, CONTENT, tokens)
    return Reply([whole], prompt)


def _reader_of(chunk: Any) -> Reader | None:
    """Return the reader of the API to which this chunk belongs, None for an unknown one."""
    if isinstance(getattr(chunk, "choices", None), list):
        return TextReader()  # a chat's chunks too
    kind = getattr(chunk, "type", None)
    if isinstance(kind, str):
        if kind.startswith("response."):
            return ResponsesReader()
        if kind in ("message_start", "content_block_start", "content_block_delta"):
            return MessagesReader()
    return None
