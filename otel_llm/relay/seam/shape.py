"""The form of a resumed reply's lines: that of the lines before the seam."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.relay.seam.edit import dumps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.relay.seam.chunk import Choice
    from otel_llm.relay.seam.request import Endpoint


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
