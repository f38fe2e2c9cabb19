"""Paths as a backend may read them, and those that clients reach: inference and what belongs to it.

Rights and ownership are decided by one normal form of all spellings. The calls that control an engine are not for
clients. `/*` at the end of a listed path stands for all paths below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

MOST_DECODED: Final = 4
"""How often a path may be percent-encoded, one encoding within the other."""
BY_DEFAULT: Final = ("/v1/*", "/health", "/ping", "/version", "/tokenize", "/detokenize")
_CONTROL: Final = frozenset({
    "abort", "adapter", "adapters", "admin", "cache", "collective", "drain", "flush", "internal", "kill", "load",
    "lora", "organization", "pause", "profile", "release", "reload", "reset", "resume", "rpc", "scale", "shutdown",
    "sleep", "start", "stop", "unload", "update", "wake", "weights",
})  # fmt: skip
"""Words in the names of calls under `/v1/` that control an engine, such as `/v1/load_lora_adapter`."""
_MODELS: Final = "models"
_READ: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_WORD: Final = re.compile(r"[a-z0-9]+")


def normal_path(path: str) -> str | None:
    """Return a path in lower case, decoded, with one slash between segments; a query and parameters are cut off.

    None for one that servers read differently: with `.` or `..` segments, backslashes, characters that do not print,
    or an encoding that does not end.
    """
    text = path.partition("?")[0]
    for _ in range(MOST_DECODED):
        try:
            decoded = unquote(text, errors="strict")
        except UnicodeDecodeError:
            return None
        if decoded == text:
            break
        text = decoded
    else:
        return None
    segments = [segment.partition(";")[0].strip().casefold() for segment in text.split("/")]
    if "\\" in text or not text.isprintable() or not {".", ".."}.isdisjoint(segments):
        return None
    return "/" + "/".join(segment for segment in segments if segment)


@dataclass(frozen=True, slots=True)
class Passthrough:
    """The paths that pass: those of every relay, and the ones that its settings add."""

    added: tuple[str, ...] = ()

    def passes(self, method: str, path: str) -> bool:
        """Tell whether a request for a path in its normal form may reach a backend."""
        if any(_covers(one, path) for one in self.added):
            return True
        if not any(_covers(one, path) for one in BY_DEFAULT):
            return False
        first = path.removeprefix("/v1/").partition("/")[0]
        return _CONTROL.isdisjoint(_WORD.findall(first)) and (first != _MODELS or method in _READ)


def _covers(listed: str, path: str) -> bool:
    below = listed.removesuffix("*")
    return path == listed if below == listed else path.startswith(below)
