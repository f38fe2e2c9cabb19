"""The forms in which a fleet's exports reach a collector: tokens a segment, encoding, shape of a message, readers."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from collector_load import replies
from collector_load.encodings import ENCODINGS, recorded
from collector_load.fleet import APPLICATION_STREAMS, Sent, Slots, exports_of
from collector_load.recording import T0_NS
from collector_load.whole import whole_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from collector_load.recording import Recording

FLUSHES_A_SECOND = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """How streams are put into messages.

    `together`: streams of an application at most; `tokens_s`: the fleet's tokens per second if no number of streams
    is given.
    """

    meaning: str
    together: int
    tokens_s: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """What readers go through: this share of them starves."""

    meaning: str
    starving: float


SHAPES: Final = {
    "segments": Shape("each message has one segment of each of up to 256 streams", APPLICATION_STREAMS, 128_000),
    "whole": Shape("each message has all spans of the streams that ended", APPLICATION_STREAMS, 128_000, whole=True),
    "small": Shape("as segments, of up to 10 streams", 10, 128_000),
    "single": Shape("each message has the segment of one stream", 1, 8_000),
}
"""The loads are what five to twenty busy nodes make; of single segments as many as the senders can send."""
PROFILES: Final = {
    "healthy": Profile("readers read on; three streams in a hundred stall once, for 2 to 6 s", 0.0),
    "one-in-ten": Profile("one reader in ten is as in `starving`, the others are as in `healthy`", 0.1),
    "starving": Profile("all readers outrun their model all the time, and each stream stalls every few seconds", 1.0),
}


@dataclass(frozen=True, slots=True)
class Form:
    """One form; `streams` at a time, at most `together` of them in one message."""

    profile: str
    segment_tokens: int
    reply_tokens: int
    encoding: str
    shape: str
    streams: int
    together: int

    @property
    def name(self) -> str:
        """Name it in a line of progress."""
        return (
            f"{self.profile}, replies of {self.reply_tokens} tokens, {self.segment_tokens} a segment, {self.encoding}, "
            f"{self.shape}"
        )

    def record(self, seconds: float) -> tuple[Recording, Sent]:
        """Encode `seconds` of a fleet's exports in this form; return what they hold, too."""
        sent = Sent()
        exports = whole_streams if SHAPES[self.shape].whole else exports_of
        return recorded(self.encoding, exports(self._mix(seconds), T0_NS, seconds, sent, self.together)), sent

    def _mix(self, seconds: float) -> list[Slots]:
        ramp_s = min(self.reply_tokens / self.segment_tokens / FLUSHES_A_SECOND, seconds / 4)

        def slots(count: int, write: Callable[..., replies.Script]) -> list[Slots]:
            own = partial(write, segment_tokens=self.segment_tokens, reply_tokens=self.reply_tokens)
            return [Slots(count, own, ramp_s, FLUSHES_A_SECOND)] if count else []

        starving = round(self.streams * PROFILES[self.profile].starving)
        return [*slots(self.streams - starving, replies.healthy), *slots(starving, replies.starving)]


def form_of(
    profile: str,
    segment_tokens: int,
    encoding: str,
    shape: str,
    *,
    streams: int | None,
    together: int | None,
    reply_tokens: int = replies.REPLY_TOKENS,
) -> Form:
    """Return a form, by the usual load of its shape if no number of streams is given.

    `together` holds for shapes that join the streams of an application; the others say it themselves.
    """
    of_shape = SHAPES[shape]
    usual = max(1, of_shape.tokens_s // (FLUSHES_A_SECOND * segment_tokens))
    joined = of_shape.together if together is None or of_shape.together < APPLICATION_STREAMS else together
    return Form(profile, segment_tokens, reply_tokens, encoding, shape, streams or usual, joined)


def add_form_options(parser: argparse.ArgumentParser, *, encodings: list[str], shapes: list[str]) -> None:
    """Add the options that choose forms; these encodings and shapes are the defaults."""
    add = parser.add_argument
    text = f"tokens of a reply (default: {replies.REPLY_TOKENS})"
    add("--reply-tokens", type=numbers, metavar="N,..", default=[replies.REPLY_TOKENS], help=text)
    add("--segment-tokens", type=numbers, metavar="N,..", default=[64, 16, 8], help="default: 64,16,8")
    for flag, known, default in (("--encoding", ENCODINGS, encodings), ("--shape", SHAPES, shapes)):
        text = f"of the messages; names are explained below (default: {','.join(default)})"
        add(flag, type=names(known), metavar="NAME,..", default=default, help=text)


def explained(*flags: str) -> str:
    """Return what the values of these options mean, a line each."""
    groups = {
        "--encoding": ENCODINGS,
        "--shape": {name: f"{shape.meaning} ({shape.tokens_s:,} tokens/s)" for name, shape in SHAPES.items()},
        "--profile": {name: profile.meaning for name, profile in PROFILES.items()},
    }
    return "\n".join(
        f"{flag}:\n" + "".join(f"  {name:<12}{meaning}\n" for name, meaning in known.items())
        for flag, known in groups.items()
        if flag in flags
    )


def numbers(text: str) -> list[int]:
    """Return comma-separated numbers."""
    return [int(one) for one in text.split(",")]


def names(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return what reads comma-separated names of these."""

    def read(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r}: known are {', '.join(known)}")
        return text.split(",")

    return read
