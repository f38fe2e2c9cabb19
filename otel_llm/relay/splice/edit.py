"""Edits of a chunk's line that keep every other character."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from otel_llm.relay.splice.line import ending_of
from otel_llm.relay.splice.members import elements, members, removals, replaced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.relay.splice.chunk import Chunk
    from otel_llm.relay.splice.members import Member

_KEYS: Final = ("prompt_token_ids", "token_ids")
_IDS: Final = re.compile(rb', ?"(?:prompt_)?token_ids": ?\[[0-9, ]*\]')
"""A member with ids behind another member. Inside a string a quotation mark has a backslash before it, and behind the
end of a string no letter follows: so a match is always a key and its value."""
_NAME: Final = b'token_ids"'
_ESCAPE: Final = b"\\u00"
"""The beginning of an escaped ASCII character."""


def without_ids(line: bytes, chunk: Chunk) -> bytes:
    """Return a chunk's line without the ids in the chunk and in its choices; nulls stay.

    By its bytes if these show as many ids as the JSON has, else by the positions of the members in its text.
    """
    lists = named = 0
    for holder in _holders(chunk.value):
        for key in _KEYS:
            if key in holder:
                named += 1
                lists += holder[key] is not None
    # The bytes do not show all keys if one stands twice or is escaped.
    if line.count(_NAME) == named and _ESCAPE not in line:
        if not lists:
            return line
        edited, found = _IDS.subn(b"", line)
        if found == lists:
            return edited
    text = line.decode("utf-8")
    spans = []
    for found_members in _objects(text):
        ids = {i for i, member in enumerate(found_members) if member.key in _KEYS and member.value is not None}
        spans += removals(found_members, ids)
    return replaced(text, spans).encode()


def exists_for_ids(chunk: Chunk) -> bool:
    """Return whether a chunk exists only because ids were asked for: empty deltas without a finish."""
    for choice in chunk.choices:  # no generator: this runs once a token
        if not choice.bare or choice.finish is not None or choice.aborted is not None or not choice.ids:
            return False
    stated = chunk.value["choices"] if chunk.choices else ()
    return bool(stated) and all(choice.get("logprobs") is None for choice in stated if type(choice) is dict)


def without_first(line: bytes, chunk: Chunk, count: int) -> bytes:
    """Return a chunk's line without the first `count` ids of each choice and their logprobs: the client has these."""
    choices, changed = [], False
    for stated in chunk.value["choices"]:
        choice = dict(stated)
        if type(ids := choice.get("token_ids")) is list:
            choice["token_ids"] = ids[count:]
        logprobs = choice.get("logprobs")
        if type(logprobs) is dict and type(entries := logprobs.get("content")) is list:
            choice["logprobs"], changed = {**logprobs, "content": entries[count:]}, True
        choices.append(choice)
        changed = changed or bool(ids)
    return b"data: " + dumps({**chunk.value, "choices": choices}).encode() + ending_of(line) if changed else line


def with_head(line: bytes, head: Mapping[str, object], without_role: bool) -> bytes:
    """Return a chunk's line with the members of `head` in place of its own, and without `role` in its deltas."""
    text = line.decode("utf-8")
    outer, *choices = _objects(text)
    spans = [(m.start, m.end, dumps(head[m.key])) for m in outer if m.key in head and m.value is not None]
    if without_role:
        for choice in choices:
            for member in choice:
                if member.key == "delta" and type(member.value) is dict:
                    delta, _ = members(text, member.start)
                    spans += removals(delta, {i for i, m in enumerate(delta) if m.key == "role"})
    return replaced(text, spans).encode()


def dumps(value: object) -> str:
    """Return JSON as engines write it: compact, and escaped only if UTF-8 has no form for it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value, separators=(",", ":"))
    return text


def _holders(value: dict[str, Any]) -> list[dict[str, Any]]:
    choices = value.get("choices")
    return [value, *(c for c in choices if type(c) is dict)] if type(choices) is list else [value]


def _objects(text: str) -> list[list[Member]]:
    """Return the members of a line's object, then of each of its choices."""
    outer, _ = members(text, text.index("{"))
    found = [outer]
    for member in outer:
        if member.key == "choices" and type(member.value) is list:
            found += [members(text, at)[0] for at in elements(text, member.start) if text[at] == "{"]
    return found
