"""The replies that a client wrote down as they came, each event with its time: which of them were tokens.

The rules are those by which the instrumentation counts the same chunks while they pass.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_llm import semconv
from otel_llm.core.limits import MAX_TOKENS
from otel_llm.instrumentation.parse.messages import MessagesReader
from otel_llm.instrumentation.parse.responses import ResponsesReader
from otel_llm.instrumentation.parse.sse_chunks import DONE, TextReader, View
from otel_llm.readers.formats.bench.measured import EntryError, count, member

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_llm.instrumentation.segments.choices import Reader

_decoder: Final = json.JSONDecoder(object_hook=View)


@dataclass(slots=True)
class Told:
    """One stream of a reply: when its tokens came (ns), their kinds, and how they were counted."""

    choice: int = 0
    times_ns: list[int] = field(default_factory=list)
    kinds: bytearray = field(default_factory=bytearray)
    token_basis: str = "chunk"  # noqa: S105


@dataclass(slots=True)
class Reply:
    """What a reply said: its streams by choice (one without a token where none came), and the prompt's tokens."""

    streams: list[Told]
    input_tokens: int | None = None


def read_events(events: Iterable[tuple[int, bytes]]) -> Reply:
    """Return what the events of a streamed reply say, (time in ns, data) each, in order of arrival.

    A chunk is one token where nobody counted. Where chunks and the server's own count at the end agree, each was.

    Raises:
        EntryError: the events are those of an API that we do not know, or tell of more tokens than can be.
    """
    reader: Reader | None = None
    streams: dict[int, Told] = {}
    unknown = False
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
        for choice, kind, number, _ in reader(chunk):
            told = streams.setdefault(choice, Told(choice))
            if number > MAX_TOKENS - len(told.times_ns):
                raise EntryError(f"more than {MAX_TOKENS} tokens in one reply")
            told.times_ns += [at_ns] * number
            told.kinds += bytes([kind]) * number
    if reader is None:
        if unknown:
            raise EntryError("the chunks are those of an API that we do not know")
        return Reply([Told()])
    said = {**reader.segment_attributes(), **reader.span_attributes()}
    total = count(said.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS))
    for told in streams.values():
        basis = reader.basis(told.choice)
        one_each = basis == "chunk" and len(streams) == 1 and len(told.times_ns) == total
        told.token_basis = "exact" if one_each else basis
    found = sorted(streams.values(), key=lambda told: told.choice)
    return Reply(found or [Told()], count(said.get(semconv.GEN_AI_USAGE_INPUT_TOKENS)))


def read_whole(at_ns: int, body: str) -> Reply:
    """Return what a reply says that came in one piece: all its tokens at that time, as many as the server counted.

    Raises:
        EntryError: it is no JSON object, or does not say how many tokens it has.
    """
    try:
        said: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise EntryError("the reply is no JSON") from None
    usage = member(said, "usage")
    tokens = count(member(usage, "completion_tokens"))
    if tokens is None:
        tokens = count(member(usage, "output_tokens"))
    if tokens is None or tokens > len(body):
        raise EntryError("the reply came in one piece and does not say how many tokens it has")
    prompt = count(member(usage, "prompt_tokens"))
    return Reply([Told(0, [at_ns] * tokens, bytearray(tokens), "exact")], prompt)


def _reader_of(chunk: Any) -> Reader | None:
    """Return what reads the replies of the API that this chunk is of."""
    if isinstance(getattr(chunk, "choices", None), list):
        return TextReader()  # a chat's chunks too
    kind = getattr(chunk, "type", None)
    if isinstance(kind, str):
        if kind.startswith("response."):
            return ResponsesReader()
        if kind in ("message_start", "content_block_start", "content_block_delta"):
            return MessagesReader()
    return None
