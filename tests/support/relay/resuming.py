"""A reply taken through the splice in memory: whole, or cut at chosen chunks and resumed; and what its client saw."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.relay.fake_model import FakeModel, Json

from otel_llm.relay.splice.eligibility import Way
from otel_llm.relay.splice.reply import Reply
from otel_llm.relay.splice.request import OwnedRequest
from otel_llm.relay.splice.resume import Carry, detokenize_body, detokenized, left, native_body, resume_body
from otel_llm.relay.splice.upstream_response import CUT, DIFFERS, IGNORED, UpstreamResponse

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass
class Seen:
    """What a client gathers from the bytes of a reply."""

    text: str = ""
    reasoning: str = ""
    calls: list[Json] = field(default_factory=list)
    """Of each tool call its id, its name and its arguments."""
    logprobs: list[Json] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    finishes: list[str] = field(default_factory=list)
    roles: int = 0
    heads: set[tuple[object, ...]] = field(default_factory=set)
    shapes: set[str] = field(default_factory=set)
    usage: Json | None = None
    running: list[int] = field(default_factory=list)
    dones: int = 0
    prompt_ids: list[int] | None = None


def events_of(data: bytes) -> Iterator[str]:
    """Yield the data of each event as a parser of SSE dispatches it."""
    gathered: list[str] = []
    for line in data.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if not line:
            if gathered:
                yield "\n".join(gathered)
            gathered = []
        elif line.startswith("data:"):
            gathered.append(line[5:].removeprefix(" "))
    assert not gathered, "the last event has not ended"


def seen_of(data: bytes) -> Seen:
    seen = Seen()
    for event in events_of(data):
        if event == "[DONE]":
            seen.dones += 1
            continue
        chunk = json.loads(event)
        seen.heads.add(tuple(chunk.get(key) for key in ("id", "object", "created", "model")))
        seen.prompt_ids = chunk.get("prompt_token_ids") or seen.prompt_ids
        for choice in chunk["choices"]:
            delta = choice.get("delta")
            seen.text += choice["text"] if delta is None else delta.get("content", "")
            seen.reasoning += (delta or {}).get("reasoning", "")
            for stated in (delta or {}).get("tool_calls", ()):
                if "id" in stated:
                    seen.calls.append({"id": stated["id"], "name": stated["function"]["name"], "arguments": ""})
                seen.calls[stated["index"]]["arguments"] += stated["function"].get("arguments", "")
            seen.logprobs += (choice.get("logprobs") or {}).get("content", [])
            seen.roles += bool(delta and "role" in delta)
            seen.ids += choice.get("token_ids") or []
            seen.prompt_ids = choice.get("prompt_token_ids") or seen.prompt_ids
            if choice["finish_reason"] is not None:
                seen.finishes.append(choice["finish_reason"])
        if chunk.get("usage"):
            seen.usage = {key: value for key, value in chunk["usage"].items() if value is not None}
            seen.running.append(seen.usage["completion_tokens"])
        seen.shapes.add(shape_of(chunk))
    return seen


def shape_of(value: Any) -> str:
    """Return a JSON value's form: its keys in any order, nulls left out, the types of the rest."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{shape_of(v)}" for k, v in sorted(value.items()) if v is not None) + "}"
    if isinstance(value, list):
        return "[" + "|".join(sorted({shape_of(v) for v in value})) + "]"
    return type(value).__name__


def pieces_of(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Return the data cut at these places."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def owned(body: Json) -> OwnedRequest:
    endpoint = "chat" if "messages" in body else "completions"
    request = OwnedRequest.parse(PATHS[endpoint], json.dumps(body).encode())
    assert request is not None
    return request


def carried(reply: Reply, model: FakeModel) -> int | None:
    """Return how many ids are carried, as the engine's `/detokenize` answers; None if that is not known."""
    carry = Carry(reply)
    while carry.missing is not None:
        asked = json.loads(detokenize_body(reply, carry.missing))
        carry.answer(detokenized(json.dumps(model.detokenized(asked)).encode()))
    assert (carry.count is None) == (carry.reason is not None)
    return carry.count


@dataclass
class Resumed:
    """A reply that was cut and resumed: the client's bytes, the tokens recorded, the ids carried at each splice."""

    reply: Reply
    data: bytes = b""
    tokens: int = 0
    carried: list[int] = field(default_factory=list)
    again: int = 0
    lost: bool = False
    """Stopped at a splice if it is not known which ids are carried."""
    reason: str | None = None
    """Why it could not be resumed at the break."""
    bare_finish: bool = False
    """Broke off between the finish and `[DONE]`, which is whole."""


def run(
    body: Json,
    models: Sequence[FakeModel],
    lengths: Sequence[int],
    splits: Iterable[int] = (),
    torn: int = 0,
    ending: bytes = b"\n",
    kind: str = "vllm",
    way: Way = "completions",
) -> Resumed:
    """Serve a request by one model after the other: each but the last breaks off after its number of chunks.

    `splits`: where the bytes of each are cut into readings. `torn`: how many bytes of the next chunk come before the
    break. `ending`: that of each line. `kind`: of each backend. `way`: of each resumption.
    """
    request = owned(body)
    reply = Reply(request)
    result = Resumed(reply)
    sent = json.loads(b"".join(request.body_with_ids()))
    count: int | None = None
    echo: int | None = None
    for index, model in enumerate(models):
        upstream_response = UpstreamResponse(reply, kind, count, echo=echo)
        chunks = [chunk.replace(b"\n", ending) for chunk in model.chunks(sent)]
        if index < len(models) - 1:
            chunks, rest = chunks[: lengths[index]], chunks[lengths[index] :]
            chunks += [rest[0][:torn]] if rest else []
        readings = [upstream_response.feed(data) for data in pieces_of(b"".join(chunks), splits)]
        for line in itertools.chain(*readings, upstream_response.end()):
            if line.trouble == CUT:
                break
            assert line.trouble not in (DIFFERS, IGNORED)
            result.data += reply.take(upstream_response, line)
            result.tokens += sum(number for _, number, _, _ in line.tokens) + len(line.texts)
        if reply.finish is not None or index == len(models) - 1:
            broke = index < len(models) - 1
            result.bare_finish = broke and not reply.done
            result.data += reply.separator() if broke else b""
            break
        if reply.reason is not None:
            result.reason = reply.reason
            break
        if not reply.begun:
            count, echo, sent = None, None, json.loads(b"".join(request.body_with_ids()))
            result.again += 1
            continue
        count = carried(reply, model)
        if count is None:
            result.lost = True
            break
        result.carried.append(count)
        tokens = left(reply, count, model.max_model_len)
        assert tokens is not None
        if way == "chat":
            echo = len(reply.prompt_ids or ()) + count
            sent = json.loads(native_body(reply, count, tokens))
        else:
            sent = json.loads(resume_body(reply, count, tokens))
    return result
