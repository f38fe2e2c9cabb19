"""A Dockerfile, as far as ours go: stages of instructions; what a builder is sent; the steps, run without an engine."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

INSTRUCTION = re.compile(r"([A-Z]+)\s+(.*)", re.DOTALL)


@dataclass(frozen=True)
class Stage:
    """A build stage: its base, and its instructions in order."""

    name: str
    base: str
    steps: tuple[tuple[str, str], ...]

    def texts(self, instruction: str) -> list[str]:
        return [text for name, text in self.steps if name == instruction]

    def copies(self) -> list[tuple[list[str], str]]:
        """Return the sources and the target of each COPY from the checkout."""
        words = [shlex.split(text) for text in self.texts("COPY") if not text.startswith("--from=")]
        return [(one[:-1], one[-1]) for one in words]

    def command(self, instruction: str) -> list[str]:
        """Return the last CMD or ENTRYPOINT, in its form of a list."""
        words = json.loads(self.texts(instruction)[-1])
        assert isinstance(words, list)
        return words

    def environment(self) -> dict[str, str]:
        return dict(word.split("=", 1) for text in self.texts("ENV") for word in shlex.split(text))


def read_stages(path: Path) -> dict[str, Stage]:
    """Return the stages of a Dockerfile by name."""
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for line in filter(None, map(str.strip, whole.split("\n"))):
        match = INSTRUCTION.fullmatch(line)
        assert match, line
        if match[1] == "FROM":
            base, name = match[2].split(" AS ")
            found[name] = (base, [])
        else:
            found[next(reversed(found))][1].append((match[1], match[2]))
    return {name: Stage(name, base, tuple(steps)) for name, (base, steps) in found.items()}


def is_sent(path: str, ignore_file: Path) -> bool:
    """Tell whether a builder is sent a path: the last pattern that matches it, or a folder above it, decides."""
    sent = True
    parts = path.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    for line in filter(None, map(str.strip, ignore_file.read_text(encoding="utf-8").split("\n"))):
        if line.startswith("#"):
            continue
        pattern = line.lstrip("!")
        names = parts if pattern.startswith("**/") else above
        if any(fnmatch.fnmatchcase(name, pattern.removeprefix("**/")) for name in names):
            sent = line.startswith("!")
    return sent
