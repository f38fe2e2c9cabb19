"""Build the request that continues a reply on another backend: carried ids, tokens left, body."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_llm.relay.splice.eligibility import carried_keys
from otel_llm.relay.splice.large_body import PromptIds

if TYPE_CHECKING:
    from otel_llm.relay.splice.reply import Reply

DETOKENIZE_PATH: Final = "/detokenize"
COMPLETIONS_DEFAULT: Final = 16
"""`max_tokens` of a completion without one, on both engines."""

UNFINISHED: Final = "unfinished character"
MAX_DROPPED: Final = 16
"""Ids that are dropped at most, which bounds the requests to `/detokenize`. A character has four bytes; a tokenizer
that cuts it into more lines gives no text."""
_CONTEXT: Final = 8
"""Ids before those in question that are detokenized too: some tokenizers trim the beginning of a text."""


class Carry:
    """The search for the number of carried output ids: those whose complete text the client has.

    While `missing` is not None, detokenize these ids at the destination and `answer` with the text, None if there is
    none. Then `count` is the number, or None and `reason` tells why there is none. It uses the reply as it was when
    this was made.
    """

    def __init__(self, reply: Reply) -> None:
        ids = reply.ids
        self.missing: list[int] | None = None
        self.count: int | None = None
        self.reason = reply.reason
        if self.reason is None and reply.mixed:
            self.reason = UNFINISHED
        if self.reason is not None:
            return
        self._whole = reply.whole
        self._text = reply.tail
        self._parsed = reply.parsed
        self._candidates = ids[self._whole : reply.texted]  # those behind have no text yet: they are generated again
        self._before: str | None = None
        self.count = reply.carried
        if self.count is not None:
            return
        prompt = reply.prompt_ids or PromptIds()
        self._context = [*prompt.last(_CONTEXT), *ids[: self._whole]][-_CONTEXT:]
        self._fewest = max(1, len(self._candidates) - MAX_DROPPED)
        self.missing = self._context
        if not self._context:
            self.answer("")

    def answer(self, text: str | None) -> None:
        """Use the text of the ids that were asked for."""
        self.missing = None
        if text is None:
            self.reason = UNFINISHED
            return
        if self._before is None:
            self._before = text
        elif self._fits(text):
            self.count = self._whole + len(self._candidates)
            return
        else:
            self._candidates.pop()
        if len(self._candidates) < self._fewest:
            self.reason = UNFINISHED
        else:
            self.missing = self._context + self._candidates

    def _fits(self, text: str) -> bool:
        """Return whether the candidates have the client's text, or end with it behind a marker that a parser took."""
        if text == (self._before or "") + self._text:
            return True
        return self._parsed and text.startswith(self._before or "") and text.endswith(self._text)


def detokenize_body(reply: Reply, ids: list[int]) -> bytes:
    """Return the body of the request to `/detokenize`."""
    request = reply.request
    keys = ("model", *reply.dialect.detokenize_keys)
    parts = [f'"{key}":{request.raw[key]}' for key in keys if request.values.get(key) is not None]
    parts.append(f'"tokens":{json.dumps(ids)}')
    return f"{{{','.join(parts)}}}".encode()


def detokenized(body: bytes) -> str | None:
    """Return the text in an answer of `/detokenize` (`prompt` of vLLM, `text` of SGLang), None if it is no text."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    text = value.get("prompt", value.get("text"))
    return text if isinstance(text, str) else None


def left(reply: Reply, carried: int, max_model_len: int) -> int | None:
    """Return the number of tokens that may follow `carried` ids, None for none: then the break cannot be mended."""
    request = reply.request
    if request.max_tokens is not None:
        allowed = request.max_tokens
    elif request.endpoint == "completions":
        allowed = COMPLETIONS_DEFAULT
    else:
        allowed = max_model_len - len(reply.prompt_ids or ())
    rest = allowed - carried
    return rest if rest > 0 else None


def native_body(reply: Reply, carried: int, tokens_left: int) -> bytes:
    """Return the body of the chat request that continues after `carried` ids: the client's own, with the ids.

    Members are sent as the client wrote them, except those that the relay sets. Raises ValueError for a stream that
    cannot be resumed.
    """
    if reply.reason is not None or reply.prompt_ids is None:
        raise ValueError("not resumable")
    request = reply.request
    keys = reply.dialect.native_keys
    begin, end = request.prompt_at
    sent = [
        f"{json.dumps(name)}:{text},".encode()
        for name, text in request.raw.items()
        if request.values[name] is not None and (name not in keys or keys[name].how != "spent")
    ]
    rest = f'"max_tokens":{tokens_left},"return_token_ids":true'
    fewest = request.values.get("min_tokens")
    if fewest is not None:
        rest += f',"min_tokens":{max(0, fewest - carried)}'
    return b"".join(
        [
            *(b'{"messages":', request.body[begin:end], b",", *sent, rest.encode()),
            *(b',"kv_transfer_params":{"prompt_token_ids":[', _ids_text(reply, carried), b"]}}"),
        ]
    )


def _ids_text(reply: Reply, carried: int) -> bytes:
    """Return the ids of the prompt and of the carried output as JSON, without brackets."""
    assert reply.prompt_ids is not None  # noqa: S101
    output = json.dumps(reply.ids[:carried], separators=(",", ":"))[1:-1].encode()
    return b",".join(part for part in (reply.prompt_ids.text, output) if part)


def resume_body(reply: Reply, carried: int, tokens_left: int) -> bytes:
    """Return the body of the `POST /v1/completions` that continues after `carried` ids, at a backend of the same kind.

    Parameters are sent as the client wrote them. Raises ValueError for a stream that cannot be resumed.
    """
    if reply.reason is not None or reply.prompt_ids is None:
        raise ValueError("not resumable")
    request = reply.request
    prompt = _ids_text(reply, carried)
    sent = "".join(f"{json.dumps(key)}:{request.raw[key]}," for key in carried_keys(request, reply.dialect))
    parts = [f'"max_tokens":{tokens_left}', '"stream":true', '"return_token_ids":true']
    if request.wants_usage:
        parts.append('"stream_options":{"include_usage":true}')
    rest = f"{','.join(parts)}{reply.dialect.resume_members}"
    return b"".join((b"{", sent.encode(), b'"prompt":[', prompt, b"],", rest.encode(), b"}"))
