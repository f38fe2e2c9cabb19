"""A streamed reply as its client has it, from all of its backends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_llm.relay.splice import edit
from otel_llm.relay.splice.dialect import NO_IDS
from otel_llm.relay.splice.edit import dumps
from otel_llm.relay.splice.eligibility import may_call_tools
from otel_llm.relay.splice.line import ending_of
from otel_llm.relay.splice.upstream_response import CUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.relay.splice.chunk import Choice, Chunk
    from otel_llm.relay.splice.dialect import Dialect
    from otel_llm.relay.splice.large_body import PromptIds
    from otel_llm.relay.splice.line import Line
    from otel_llm.relay.splice.request import Endpoint, OwnedRequest
    from otel_llm.relay.splice.upstream_response import UpstreamResponse

_HEAD: Final = ("id", "object", "created", "model")
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n")


class Shape:
    """The form of one reply's chunks: `head` has the `id`, `object`, `created` and `model` that the client knows.

    `stop_key`: the member of a choice with the cause of its end.
    """

    __slots__ = ("_endpoint", "_head", "_stop_key")

    def __init__(self, endpoint: Endpoint, head: Mapping[str, object], stop_key: str) -> None:
        self._endpoint = endpoint
        self._stop_key = dumps(stop_key)
        self._head = "".join(f"{dumps(key)}:{dumps(value)}," for key, value in head.items())

    def chunk(
        self, choice: Choice, ids: list[int] | None, usage: str | None, fingerprint: str | None, *, bare: bool
    ) -> str:
        """Return a chunk of one choice; `bare`: with an empty delta. None leaves a member out."""
        if self._endpoint == "chat":
            text = '"delta":{}' if bare else f'"delta":{{"content":{dumps(choice.text)}}}'
        else:
            text = f'"text":{dumps(choice.text)}'
        finish = "null" if choice.finish is None else dumps(choice.finish)
        stop = "" if choice.finish is None else f",{self._stop_key}:{dumps(choice.stop_reason)}"
        shown = "" if ids is None else f',"token_ids":{dumps(ids)}'
        inner = f'{{"index":0,{text},"logprobs":null,"finish_reason":{finish}{stop}{shown}}}'
        return f'{{{self._head}"choices":[{inner}]{_tail(usage, fingerprint)}}}'

    def usage(self, usage: str, fingerprint: str | None) -> str:
        """Return the chunk that has only the usage."""
        return f'{{{self._head}"choices":[]{_tail(usage, fingerprint)}}}'


def usage_of(prompt: int, output: int) -> str:
    """Return the JSON of a usage of `prompt` and `output` tokens."""
    return f'{{"prompt_tokens":{prompt},"total_tokens":{prompt + output},"completion_tokens":{output}}}'


def _tail(usage: str | None, fingerprint: str | None) -> str:
    stated = "" if usage is None else f',"usage":{usage}'
    return stated if fingerprint is None else f'{stated},"system_fingerprint":{dumps(fingerprint)}'


class Reply:
    """The state of one owned stream.

    `reason`: why it cannot be resumed, None while it can; the first reason stays. `channel_reason`: why only the chat
    endpoint can resume it, None if `/v1/completions` can too. `parsed`: a parser of reasoning or of tools is or may be
    at work on it, so that a chunk's text may lag behind its ids. `mixed`: its last ids have text in two channels.
    `begun`: the client has a token of it (text, or ids that it asked for) or a finish; before, the request can simply
    be sent again. `finish`: the newest finish reason that the client has, once every choice has one, or UNKNOWN if
    `[DONE]` alone says that it is whole. `refused`: the kind of the client's own error, once the client has it. `done`:
    it has `[DONE]`.
    """

    def __init__(self, request: OwnedRequest, reason: str | None = None) -> None:
        self.request = request
        self.reason = reason
        if reason is None and request.choices != 1:
            self.reason = f"{request.choices} choices"
        self.channel_reason: str | None = None
        self.parsed = may_call_tools(request)
        self.mixed = False
        self.prompt_ids: PromptIds | None = None
        self.prompt_tokens: int | None = None
        self.begun = False
        self.finish: str | None = None
        self.refused: str | None = None
        self.done = False
        self.system_fingerprint: str | None = None
        self.head: dict[str, object] | None = None
        self._ids: list[int] = []
        self._whole = 0
        self._tail = ""
        self._channel: str | None = None  # of the newest text
        self._texted = 0
        self._counts: dict[int, int] = {}
        self._upstream_response: UpstreamResponse | None = None
        self._head_response: UpstreamResponse | None = None
        self._shape: Shape | None = None
        self._roles: set[int] = set()  # the choices whose role the client has
        self._running_usage = request.continuous_usage
        self._last_usage: dict[str, Any] | None = None  # stated beside a choice by the only backend so far
        self._usage_told = False  # the client has the chunk with the usage alone
        self._estimated = False  # a token was counted without its id
        self._bare = False
        self._swallowed = False
        self._new_response = False  # the client has no line yet of the upstream response that serves behind another
        self._written = (b"", b"")  # the last two parts

    @property
    def dialect(self) -> Dialect:
        """The API of the serving backend."""
        return NO_IDS if self._upstream_response is None else self._upstream_response.dialect

    @property
    def over(self) -> bool:
        """Whether the client has the end of the reply: no break behind it counts."""
        return self.finish is not None or self.refused is not None

    @property
    def ids(self) -> list[int]:
        """The output ids received so far, a copy; none of a stream that cannot be resumed."""
        return self._ids.copy()

    @property
    def whole(self) -> int:
        """The number of ids known to be carried: the client has their complete text."""
        return self._whole

    @property
    def tail(self) -> str:
        """The client's text after that of the ids known to be carried."""
        return self._tail

    @property
    def texted(self) -> int:
        """The number of ids up to the newest text."""
        return self._texted

    @property
    def carried(self) -> int | None:
        """The number of ids whose complete text the client has; None if only a tokenizer can tell (a tail)."""
        return None if self._tail or self.mixed else self._whole

    def ids_from(self, index: int) -> list[int]:
        """Return the output ids from `index` on."""
        return self._ids[index:]

    def counted(self, choice: int) -> int:
        """Return the number of counted ids of a choice; ids received again up to there are not counted again."""
        return self._counts.get(choice, 0)

    def cannot_resume(self, reason: str) -> None:
        """Note that the stream is no longer resumable; its ids are forgotten. The first reason stays."""
        if self.reason is None:
            self.reason = reason
        self._ids = []
        self.prompt_ids = None
        self._tail = ""
        self._whole = 0

    def take(self, upstream_response: UpstreamResponse, line: Line) -> bytes:
        """Commit a line and return the client's bytes for it, which may be none.

        The lines of one upstream response are taken in order. The first taken line of another one makes that the
        serving one: its contents follow its carried ids, or, with none carried, begin the reply again.
        """
        if upstream_response is not self._upstream_response:
            self._switch(upstream_response)
        chunk = line.chunk
        if line.goes_on:
            self.finish = None
        if line.trouble is not None:
            self.cannot_resume(line.trouble)
        if chunk is None:
            written = self._line(upstream_response, line)
        else:
            counted, finished = self.counted(0), self.finish is not None
            self._ingest(upstream_response, line, chunk)
            written = self._chunk(upstream_response, line, chunk, counted, finished)
        if self.finish is None and self.refused is None:
            if line.error is not None and line.error.clients:
                self.refused = line.error.kind
            self.finish = line.ends
        self._swallowed = not written
        if not written:
            return b""
        written += line.gap
        if self._new_response:
            written = self.separator() + written
            self._new_response = False
        self._written = (self._written[1], written)
        return written

    def separator(self) -> bytes:
        """Return the ending of the last written event if it is unfinished: needed before anything new."""
        last = b"".join(self._written)[-4:]
        if not last or last.endswith(_EVENT_ENDS):
            return b""
        # A CR may be the first half of a CRLF: an LF alone would only be the other half.
        return b"\n" if last.endswith(b"\n") else b"\n\n"

    def rest(self, *, orderly: bool) -> bytes:
        """Return what a reply that is over lacks for its client: the usage that it asked for, and `[DONE]`.

        `orderly`: the backend ended the body; if its kind may leave `[DONE]` out, nothing is lacking. Without an exact
        count the usage is left out.
        """
        if self.done or self.finish is None:
            return b"" if orderly else self.separator()
        if orderly and self.dialect.done_is_whole:
            return b""
        self.done = True
        usage = self._usage() if self.request.wants_usage and not self._usage_told else None
        reported = b""
        if usage is not None:
            reported = b"data: " + self._form().usage(usage, self.system_fingerprint).encode() + b"\n\n"
        return self.separator() + reported + b"data: [DONE]\n\n"

    def _usage(self) -> str | None:
        """Return the JSON of the usage, None if it is not known."""
        if self._last_usage is not None and self.request.choices == 1:
            return edit.dumps(self._last_usage)
        if self._estimated or self.prompt_tokens is None:
            return None
        return usage_of(self.prompt_tokens, sum(self._counts.values()))

    def _form(self) -> Shape:
        if self._shape is None:
            self._shape = Shape(self.request.endpoint, self.head or {}, self.dialect.stop_key)
        return self._shape

    def comment(self, text: str) -> bytes:
        """Return a comment, which clients skip, between two events; to be written unchanged."""
        written = self.separator() + b": " + text.encode() + b"\n\n"
        self._written = (self._written[1], written)
        return written

    def error_event(self, message: str, kind: str, code: str | int | None) -> bytes:
        """Return the event that ends a stream which cannot go on; to be written unchanged."""
        error = {"error": {"message": message, "type": kind, "code": code}}
        return self.separator() + b"data: " + edit.dumps(error).encode() + b"\n\n"

    def _switch(self, upstream_response: UpstreamResponse) -> None:
        first = self._upstream_response is None
        self._upstream_response = upstream_response
        if first:
            return
        base = upstream_response.carried or 0
        del self._ids[base:]
        self._whole, self._tail, self._texted, self.mixed = base, "", base, False
        if upstream_response.carried is None:
            self.prompt_ids = None
            self._channel = self.channel_reason = None
        self._swallowed = False
        self._new_response = True

    def _line(self, upstream_response: UpstreamResponse, line: Line) -> bytes:
        """Return the client's bytes for a line without a chunk."""
        data = line.raw
        if self._swallowed and not data.strip(b"\r\n"):
            return b""
        if line.trouble == CUT and self.over and not self.dialect.done_is_whole:  # `rest` comes instead
            return b""
        if line.done:
            if self.done and self._head_response not in (None, upstream_response):
                return b""
            self.done = True
        return data

    def _ingest(self, upstream_response: UpstreamResponse, line: Line, chunk: Chunk) -> None:
        value = chunk.value
        if self.head is None and chunk.error is None and chunk.choices:
            self._ingest_head(value)
            self._head_response = upstream_response
        fingerprint = value.get("system_fingerprint")
        if fingerprint is not None and self.system_fingerprint is None and type(fingerprint) is str:
            self.system_fingerprint = fingerprint
        usage = chunk.usage
        if usage is not None:
            self._last_usage = usage if upstream_response.carried is None else None
            if chunk.choices:
                self._running_usage = True
            else:
                self._usage_told = True
            prompt = usage.get("prompt_tokens")
            if self.prompt_tokens is None and type(prompt) is int:
                self.prompt_tokens = prompt
        if chunk.prompt_ids is not None and upstream_response.carried is None and self.reason is None:
            self.prompt_ids = chunk.prompt_ids
            self.prompt_tokens = len(chunk.prompt_ids)
        for index, count, _, _ in line.tokens:
            self._counts[index] = self.counted(index) + count
        for choice in line.texts:
            self._estimated = True
            self._counts[choice.index] = self.counted(choice.index) + 1
        if line.text or line.finish is not None or (line.ids and self.request.asked_ids):
            self.begun = True
        if self.reason is None:
            self._follow(upstream_response, chunk)

    def _ingest_head(self, value: Mapping[str, Any]) -> None:
        stated = {key: value[key] for key in _HEAD if value.get(key) is not None}
        self.head = {key: known for key, known in stated.items() if type(known) in (str, int)}
        if len(self.head) < len(stated):
            self.cannot_resume("an id, object, created or model of a wrong type")

    def _follow(self, upstream_response: UpstreamResponse, chunk: Chunk) -> None:
        """Keep the data for a resumption, or the reason why there will be none."""
        if chunk.odd is not None:
            self.cannot_resume(chunk.odd)
            return
        for choice in chunk.choices:
            ids = choice.ids
            if choice.index or len(chunk.choices) > 1:
                self.cannot_resume("several choices")
            elif not choice.plain:
                self.cannot_resume(f"a {choice.kind or 'strange'} delta")
            elif (choice.text or choice.reasoning) and not ids:
                self.cannot_resume("a chunk without ids")
            elif ids and self.prompt_ids is None:
                self.cannot_resume("no prompt ids")
            elif ids:
                self._ids += ids
                self._follow_text(choice, whole=len(ids) == 1 and upstream_response.dialect.whole_texts)

    def _follow_text(self, choice: Choice, *, whole: bool) -> None:
        """Note the text of the newest ids; `whole`: it is all the text that they have, unless a parser holds some."""
        self.mixed = bool(choice.text and choice.reasoning)
        if choice.reasoning:
            self.parsed = True
            self.channel_reason = "a reasoning delta"
        text = choice.text or choice.reasoning
        if not text:
            return
        channel = "content" if choice.text else "reasoning"
        if channel != self._channel:  # what is between the texts of two channels is a marker
            if self._channel is not None:
                self._whole, self._tail = self._texted, ""
            self._channel = channel
        self._texted = len(self._ids)
        if whole and not self.parsed:
            self._whole, self._tail = len(self._ids), ""
        else:
            self._tail += text

    def _chunk(
        self, upstream_response: UpstreamResponse, line: Line, chunk: Chunk, counted: int, finished: bool
    ) -> bytes:
        """Return the client's bytes for a chunk."""
        if chunk.error is not None:
            data = edit.without_ids(line.flat, chunk) if upstream_response.strips else line.flat
            return line.raw if data == line.flat else line.before + data
        if upstream_response.carried is not None and not upstream_response.native:
            return self._reshaped(line, chunk, counted, finished)
        data = line.flat
        again = upstream_response is not self._head_response and self.head is not None
        if again and (self._repeats(line, chunk, counted) or (upstream_response.native and finished and chunk.choices)):
            return b""
        if upstream_response.native and line.ids and line.at < counted:
            data = edit.without_first(data, chunk, counted - line.at)
        if edit.exists_for_ids(chunk):
            self._bare = True
            if upstream_response.strips:
                return b""
        if upstream_response.strips:
            data = edit.without_ids(data, chunk)
        roles = {choice.index for choice in chunk.choices if choice.role}
        if again:
            head = self._known_head()
            if upstream_response.native and chunk.usage is not None:
                output = max(line.at + len(line.ids), counted)
                head["usage"] = json.loads(usage_of(self.prompt_tokens or 0, output))
            data = edit.with_head(data, head, without_role=roles <= self._roles)
        self._roles |= roles
        return line.raw if data == line.flat else line.before + data

    def _repeats(self, line: Line, chunk: Chunk, counted: int) -> bool:
        """Return whether a chunk of a restarted reply only repeats the role, or ids without text."""
        if not chunk.choices or line.text or line.finish is not None:
            return False
        if line.ids:
            return line.at + len(line.ids) <= counted
        return all(choice.role and choice.index in self._roles for choice in chunk.choices)

    def _reshaped(self, line: Line, chunk: Chunk, counted: int, finished: bool) -> bytes:
        """Return the client's bytes for a chunk of `/v1/completions` that continues the reply."""
        shape = self._form()
        stated = chunk.value.get("system_fingerprint")
        fingerprint = None if stated is None else self.system_fingerprint
        prompt, output = self.prompt_tokens or 0, line.at + len(line.ids)
        if not chunk.choices:
            if chunk.usage is None:
                return b"" if "id" in chunk.value else line.raw
            return _data(shape.usage(usage_of(prompt, output), fingerprint), line)
        choice = chunk.choices[0]
        new = line.ids[max(0, counted - line.at) :]
        if finished:
            return b""
        if choice.finish is None and not choice.text and (not new or (self._bare and not self.request.asked_ids)):
            return b""
        text = shape.chunk(
            choice,
            new if self.request.asked_ids else None,
            # It may begin before ids that the client was told without their text: its count does not go back.
            usage_of(prompt, max(output, counted)) if self._running_usage else None,
            fingerprint,
            bare=self._bare and not choice.text,
        )
        return _data(text, line)

    def _known_head(self) -> dict[str, object]:
        known = dict(self.head or {})
        if self.system_fingerprint is not None:
            known["system_fingerprint"] = self.system_fingerprint
        return known


def _data(text: str, line: Line) -> bytes:
    return line.before + b"data: " + text.encode() + (ending_of(line.raw) or b"\n")
