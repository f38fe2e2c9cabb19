"""The paths that clients reach: inference and what belongs to it. The calls that control an engine are not among them.

They are listed by the normal form of a path. `/*` at the end of one stands for all paths below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

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
