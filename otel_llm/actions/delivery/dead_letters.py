"""Messages that were given up: a file of JSON lines from which they can be sent again.

The collector appends to the file, also while it is being emptied; the file's lock orders writers and readers. Lines
that were taken out stand in a second file beside it until all of them were sent or put back, so that an interruption
loses nothing; a message may then be sent twice, under its one id.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from otel_llm.actions.delivery.durable_queue import Message
from otel_llm.config.file_defaults import PRIVATE
from otel_llm.rules.decisions.output_file import open_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from otel_llm.actions.delivery.channels import Channel

DEAD_LETTERS: Final = "dead_letters.jsonl"
TAKEN: Final = ".resending"
"""Suffix of the second file: lines that were taken out and are neither sent nor put back."""
PATIENCE: Final = 3
"""Failures in a row after which a channel counts as away: its other messages are put back without a try."""
_ID: Final = re.compile(r"[\x21-\x7e]{1,256}", re.ASCII)
_TEXTS: Final = frozenset({"id", "to", "about", "body", "tenant"})


class BusyError(Exception):
    """Another process is sending this file's messages just now."""


class NoDeadLettersError(Exception):
    """A file holds something, but no dead letter."""


@dataclass(slots=True)
class Resent:
    """Counts of sent messages, and the reasons why others were kept; `broken`: lines that are no message."""

    sent: int = 0
    kept: list[tuple[Message, str]] = field(default_factory=list)
    broken: list[tuple[int, str]] = field(default_factory=list)


def bury(path: Path, message: Message, reason: str, now_ns: int, mode: int = PRIVATE) -> None:
    """Append a message that was given up; raises OSError if it cannot be written. A new file gets `mode`."""
    line = {"time_unix_nano": now_ns, "reason": reason, **message.record()}
    _append(path, json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n", mode)


def unbury(line: bytes) -> Message:
    """Return the message of a line; raises ValueError, with the reason, if it is none."""
    try:
        whole = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("no JSON") from None
    if not isinstance(whole, dict):
        raise ValueError("no JSON object")  # noqa: TRY004  of the file, not of an argument
    given: dict[str, Any] = {one.name: whole.get(one.name) for one in fields(Message)}
    for name, value in given.items():
        wanted = str if name in _TEXTS else int
        if type(value) is not wanted:
            raise ValueError(f"`{name}` is no {'text' if wanted is str else 'whole number'}")
    message = Message(**given)
    if not _ID.fullmatch(message.id):
        raise ValueError("`id` is no word of at most 256 characters")
    return message


def resend(
    path: Path,
    channels: Mapping[str, Channel],
    now_ns: Callable[[], int],
    progress: Callable[[int, int], None] | None = None,
) -> Resent:
    """Send each message of the file once, and keep those that do not arrive.

    `channels`: by the name that messages use. Messages about the same thing arrive in their order: once one fails,
    those behind it are kept. `progress` gets how many of how many messages are done. A line that is no message, or
    whose message is not tried, stays byte for byte; so does the file if none is tried.

    Raises:
        BusyError: this file's messages are being sent already.
        NoDeadLettersError: no line of it is a message; the file is unchanged.
        OSError: it cannot be read or written; nothing of it is lost.
    """
    beside = path.with_name(path.name + TAKEN)
    with _taken(path, beside, channels) as (lines, out):
        run = _Run(path if out else None, channels, now_ns)
        if not out:
            for number, line in enumerate(lines, 1):
                run.take(number, line)
            if run.resent.broken and not run.resent.kept:
                number, why = run.resent.broken[0]
                raise NoDeadLettersError(f"{path}: no line of it is a dead letter (line {number}: {why})")
            return run.resent
        try:
            for number, line in enumerate(lines, 1):
                run.take(number, line)
                if progress is not None:
                    progress(number, len(lines))
        finally:  # interrupted too: put back what was not reached
            _append(path, b"".join(line + b"\n" for line in lines[run.done :]))
            beside.unlink()
    return run.resent


@dataclass(slots=True)
class _Run:
    path: Path | None
    """The file to put lines back into; None: they are still there, and nothing is tried."""
    channels: Mapping[str, Channel]
    now_ns: Callable[[], int]
    resent: Resent = field(default_factory=Resent)
    done: int = 0
    _seen: set[tuple[str, str]] = field(default_factory=set)
    _stuck: dict[tuple[str, str], str] = field(default_factory=dict)
    _failures: Counter[str] = field(default_factory=Counter)

    def take(self, number: int, line: bytes) -> None:
        """Send the message of a line, or put the line back."""
        try:
            message = unbury(line)
        except ValueError as error:
            if line.strip():
                self.resent.broken.append((number, str(error)))
            self._put_back(line)
        else:
            if (message.to, message.id) not in self._seen:  # it stands there twice if a run was interrupted
                self._seen.add((message.to, message.id))
                self._send(message, line)
        self.done = number

    def _put_back(self, line: bytes) -> None:
        if self.path is not None:
            _append(self.path, line + b"\n")

    def _send(self, message: Message, line: bytes) -> None:
        hindrance = self._hindrance(message)
        reason = hindrance or self._attempt(message)
        if reason is None:
            self.resent.sent += 1
            return
        self._stuck.setdefault((message.to, message.about), reason)
        self.resent.kept.append((message, reason))
        if hindrance is None and self.path is not None:
            bury(self.path, message, reason, self.now_ns())
        else:
            self._put_back(line)

    def _hindrance(self, message: Message) -> str | None:
        """Return why a message is not tried; None if it is."""
        if message.to not in self.channels:
            return f"{message.to} is not configured"
        if self._failures[message.to] >= PATIENCE:
            return "not tried: those before it were not taken"
        if (message.to, message.about) in self._stuck:
            return "not tried: one before it, about the same, did not arrive"
        return None

    def _attempt(self, message: Message) -> str | None:
        """Return why a message is kept; None if it was sent."""
        message.tries += 1
        attempt = self.channels[message.to].deliver(message)
        if attempt.verdict == "accepted":
            self._failures[message.to] = 0
            return None
        self._failures[message.to] += attempt.verdict == "retry"
        return attempt.reason


@contextmanager
def _taken(path: Path, beside: Path, channels: Mapping[str, Channel]) -> Iterator[tuple[list[bytes], bool]]:
    """Move the file's lines behind those that an earlier run left in the second file, and yield them.

    False with them: no line is for a known channel, so nothing was moved; the file stays locked meanwhile.
    """
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    with io.BufferedRandom(open_inside(path)) as file, io.BufferedRandom(open_inside(beside, append=True)) as taken:
        try:
            fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"another process sends the messages of {path} just now: wait for it") from None
        if os.fstat(taken.fileno()).st_nlink == 0:
            raise BusyError(f"another process has just sent the messages of {path}: ask again")
        taken.seek(0)
        left = taken.read()
        left = left[: left.rfind(b"\n") + 1]  # a torn line: its run had not emptied the file yet
        taken.truncate(len(left))
        fcntl.flock(file, fcntl.LOCK_EX)
        found = file.read()
        if found and not found.endswith(b"\n"):
            found += b"\n"
        lines = (left + found).split(b"\n")[:-1]
        if not left and not any(_is_for(line, channels) for line in lines):
            beside.unlink()
            yield lines, False
            return
        taken.write(found)
        taken.flush()
        os.fsync(taken.fileno())
        file.truncate(0)
        fcntl.flock(file, fcntl.LOCK_UN)
        yield lines, True


def _is_for(line: bytes, channels: Mapping[str, Channel]) -> bool:
    with suppress(ValueError):
        return unbury(line).to in channels
    return False


def _append(path: Path, data: bytes, mode: int = PRIVATE) -> None:
    if not data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with io.BufferedRandom(open_inside(path, append=True, mode=mode)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(data)
