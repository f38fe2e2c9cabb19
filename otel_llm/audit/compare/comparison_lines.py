"""A comparison in words: the lines of its tables, the gate's decisions, and how the intervals were made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.audit.compare.bootstrap import GIVEN
from otel_llm.audit.summary_figures import format_of
from otel_llm.shared.formatting import number, plural, share
from otel_llm.shared.printable import MISSING, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.audit.compare.comparison import Change, Comparison
    from otel_llm.audit.compare.gate import Decision

    Group = tuple[str | None, ...]

HEADINGS: Final = ("", "old", "new", "difference", "from", "to", "ratio", "")
"""The headings of `lines`."""
GATE_HEADINGS: Final = ("Gated figure", "old", "new", "at least worse by", "may get worse by", "decision")
"""The headings of `gate_lines`."""


def groups(changes: Sequence[Change]) -> list[tuple[str, list[Change]]]:
    """Return the changes of each group with its title, in order."""
    found: dict[Group, list[Change]] = {}
    for change in changes:
        found.setdefault(change.group, []).append(change)
    return [(_title(group, mine), mine) for group, mine in found.items()]


def _title(group: Group, changes: Sequence[Change]) -> str:
    return f"{name(group)}: {changes[0].old_requests:,} requests in old, {changes[0].new_requests:,} in new"


def name(group: Group) -> str:
    """Return the name of a group."""
    return ", ".join(printable(part, 32) for part in group if part is not None)


def lines(changes: Sequence[Change]) -> list[tuple[str, ...]]:
    """Return the changes of a group as lines; a figure that neither recording has is left out."""
    found: list[tuple[str, ...]] = []
    for change in changes:
        if change.old is None and change.new is None:
            continue
        write = format_of(change.figure)
        values = (change.old, change.new, change.difference, change.difference_low, change.difference_high)
        verdict = change.verdict if change.verdict != "cannot say" else "" if change.figure in GIVEN else change.why
        cells = (_signed(write, one, signed=place > 1) for place, one in enumerate(values))
        ratio = MISSING if change.ratio is None else f"x {number(change.ratio)}"
        found.append((change.figure, *cells, ratio, verdict))
    return found


def gate_lines(decisions: Sequence[Decision]) -> list[tuple[str, ...]]:
    """Return the decisions of a gate as lines."""
    found: list[tuple[str, ...]] = []
    for one in decisions:
        change, write = one.change, format_of(one.change.figure)
        allowed = f"{one.limit.by * 100:g} %" if one.limit.relative else _signed(write, one.limit.by, signed=False)
        if write is share and not one.limit.relative:
            allowed = f"{one.limit.by * 100:g} pt"
        what = f"{name(change.group)}: {change.figure}"
        least = MISSING
        if one.least_harm is not None:
            least = _signed(write, one.least_harm, signed=True) if one.least_harm > 0 else "not shown"
        state = f"{one.state}: {change.why}" if one.state == "not judged" else one.state
        found.append((what, write(change.old), write(change.new), least, allowed, state))
    return found


def gate_sentence(decisions: Sequence[Decision]) -> str:
    """Return what a gate decided, in one sentence."""
    counts = {state: sum(one.state == state for one in decisions) for state in ("worse", "held", "not judged")}
    decided = "failed" if counts["worse"] else "passed" if counts["held"] else "decided nothing"
    return (
        f"gate {decided}: of {plural(len(decisions), 'gated figure')} {counts['worse']:,} are worse beyond their "
        f"threshold, {counts['held']:,} held, {counts['not judged']:,} could not be judged"
    )


def method(found: Comparison) -> str:
    """Return how the intervals were made."""
    drawing = found.drawing
    blocks = "" if drawing.block == 1 else f" in blocks of {drawing.block}"
    return (
        f"from, to: {share(drawing.level)} bootstrap interval of the difference, {drawing.resamples:,} resamples of "
        f"the requests{blocks}, seed {drawing.seed}; rates per second of each recording's span as it was. Of 20 "
        "figures that did not change, one is expected to seem so."
    )


def _signed(write: Callable[[Any], str], value: float | None, *, signed: bool) -> str:
    if value is None:
        return MISSING
    if not signed:
        return write(value)
    # A difference of shares is in points: `-2 %` would read as a share of the old value.
    text = f"{number(abs(value) * 100)} pt" if write is share else write(abs(value))
    return text if value == 0 else f"{'+' if value > 0 else '-'}{text}"
