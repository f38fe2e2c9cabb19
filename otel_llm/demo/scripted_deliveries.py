"""Scripted deliveries: how a paced server sends a reply, chunk by chunk, and how the client reacts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Chunk:
    """A pause of `pause_s` seconds, then one chunk of `tokens` tokens."""

    pause_s: float
    tokens: int = 1


@dataclass(frozen=True, slots=True)
class Delivery:
    """One scripted reply and its story; `cut` breaks the connection after the last chunk."""

    name: str
    story: str
    chunks: tuple[Chunk, ...]
    cut: bool = False
    read_at_most: int | None = None
    """The number of chunks after which the client stops reading (it presses stop)."""


def steady(tokens: int, rate: float, first_s: float) -> tuple[Chunk, ...]:
    """Return `tokens` single-token chunks at `rate` tokens/s, the first after `first_s` seconds."""
    return (Chunk(first_s), *(Chunk(1 / rate) for _ in range(tokens - 1)))


@dataclass(frozen=True, slots=True)
class Stalls:
    """Stalls of a server: every `every`-th stream stops after `after_tokens` tokens for `for_s` seconds."""

    every: int
    after_tokens: int
    for_s: float

    def applied(self, number: int, chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
        """Return the chunks of the server's stream `number` (from 1 on), with its stall if it has one."""
        if number % self.every != 0:
            return chunks
        before, behind = up_to(chunks, self.after_tokens), _behind(chunks, self.after_tokens)
        if not behind:
            return chunks
        return (*before, replace(behind[0], pause_s=behind[0].pause_s + self.for_s), *behind[1:])


def up_to(chunks: tuple[Chunk, ...], tokens: int) -> tuple[Chunk, ...]:
    """Return the chunks of the first `tokens` tokens; the last is cut if it has more."""
    kept: list[Chunk] = []
    for chunk in chunks:
        if tokens <= 0:
            break
        kept.append(replace(chunk, tokens=min(chunk.tokens, tokens)))
        tokens -= chunk.tokens
    return tuple(kept)


def resumed(chunks: tuple[Chunk, ...], tokens: int) -> tuple[Chunk, ...]:
    """Return the chunks after the first `tokens` tokens; the prompt is read anew, so the first pause is repeated."""
    left = _behind(chunks, tokens)
    return (replace(left[0], pause_s=chunks[0].pause_s), *left[1:]) if left else ()


def _behind(chunks: tuple[Chunk, ...], tokens: int) -> tuple[Chunk, ...]:
    left: list[Chunk] = []
    for chunk in chunks:
        if tokens < chunk.tokens:
            left.append(replace(chunk, tokens=chunk.tokens - max(0, tokens)))
        tokens -= chunk.tokens
    return tuple(left)


DELIVERIES: Final = (
    Delivery("healthy", "first token in 150 ms, then faster than anybody reads", steady(110, 25, 0.15)),
    Delivery("slow-prefill", "nothing for three seconds, then a good pace", steady(60, 20, 3.0)),
    Delivery(
        "stall-full-buffer",
        "three seconds of silence behind 80 unread tokens: no reader notices",
        steady(80, 40, 0.2) + steady(40, 40, 3.0),
    ),
    Delivery(
        "stall-empty-buffer",
        "the same three seconds when everything was read: felt in full",
        steady(8, 5.5, 0.2) + steady(50, 25, 3.0),
    ),
    Delivery(
        "bursts",
        "speculative decoding: six tokens in one chunk every 300 ms",
        tuple(Chunk(0.2 if i == 0 else 0.3, 6) for i in range(14)),
    ),
    Delivery("early-cancel", "the user presses stop", steady(120, 25, 0.15), read_at_most=30),
    Delivery("disconnect", "the connection breaks in mid-reply", steady(35, 25, 0.2), cut=True),
)

Name = Literal[
    "healthy", "slow-prefill", "stall-full-buffer", "stall-empty-buffer", "bursts", "early-cancel", "disconnect"
]

DEMO_MIX: Final[tuple[tuple[Name, int], ...]] = (
    ("healthy", 10),
    ("slow-prefill", 4),
    ("stall-full-buffer", 4),
    ("stall-empty-buffer", 4),
    ("bursts", 4),
    ("early-cancel", 2),
    ("disconnect", 2),
)
"""Thirty concurrent requests."""


def by_name(name: str) -> Delivery | None:
    """Return the delivery of that name, None if there is none."""
    return next((delivery for delivery in DELIVERIES if delivery.name == name), None)
