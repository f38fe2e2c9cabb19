"""The resampling of recorded tokens to a stated total, token by token as `counting.md` defines it."""

from __future__ import annotations

from collections.abc import Sequence

from otel_llm.slo.stated_total import Stated

Token = tuple[int, int]
"""An arrival in ns, and a kind code."""


def by_definition(tokens: list[Token], commit_ns: int, stated: Stated) -> list[Token] | None:
    """Return what `counting.md` says, token by token, without the clause that a kind keeps one.

    Beside it: a group has at most a million tokens.
    """
    n, r = stated.output_tokens, stated.reasoning_tokens
    most = {"chunk": 200, "estimated": 8}.get(stated.basis or "")
    if n is None or most is None or stated.outcome != "completed" or stated.coverage != 1.0:
        return None
    ordered = sorted((max(at, commit_ns), kind) for at, kind in tokens)
    thoughts, others = ([one for one in ordered if (one[1] == 1) is wanted] for wanted in (True, False))
    if thoughts and r is None:
        return None
    found = []
    for group, count in ((thoughts, r or 0), (others, n - (r or 0))):
        w = len(group)
        if not w:
            continue
        if not (0 < count <= min(most * w, 1_000_000) and w <= 8 * count):
            return None
        if count >= w:
            found += [group[(k - 1) * w // count] for k in range(1, count + 1)]
        elif count == 1:
            found += [group[0]]
        else:
            found += [group[(k - 1) * (w - 1) // (count - 1)] for k in range(1, count + 1)]
    return sorted(found)


def judged_tokens(
    times_ns: Sequence[int], kinds: bytes | None, commit_ns: int, stated: Stated
) -> tuple[list[int], bytes | None] | None:
    """Return the tokens by which a complete stream is judged, None if they are the recorded ones."""
    tokens = list(zip(times_ns, kinds or bytes(len(times_ns)), strict=True))
    found = by_definition(tokens, commit_ns, stated)
    if found is None or found == sorted((max(at, commit_ns), kind) for at, kind in tokens):
        return None
    return [at for at, _ in found], None if kinds is None else bytes(kind for _, kind in found)
