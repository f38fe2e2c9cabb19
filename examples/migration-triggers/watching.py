"""Let the product's rule engine watch streams of known tokens, and say when their readers really waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pacing import MS, S

from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_llm.formats.records import StreamKey
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.slo.classes import SloClass

FELT_NS: Final = 100 * MS
"""A wait that counts: a tenth of a second, below which an answer seems immediate (Miller 1968; Nielsen 1993)."""
_FIRST_EMPTY_NS: Final = (250 * MS, 500 * MS)


@dataclass(slots=True)
class View:
    """A stream as the engine is shown it; its clock is the engine's."""

    key: StreamKey
    stream: Stream
    watermark_ns: int
    slo_class: str = "chat"
    model: str = "llama"
    instance: str = "a"
    measured_at: str = "relay"
    exact_resume: bool = True
    token_basis: str | None = None
    token_ratio_learned: bool | None = None
    last_byte_ns: int = 0
    counted_since_ns: int | None = None
    has_gap: bool = False
    ageless: bool = False
    offset_ns: int = 0


class Wait(NamedTuple):
    """One stall while reading: from when the text has run out to the token that ends it, and how much was waited."""

    start_ns: int
    end_ns: int
    waited_ns: int


def reports(tokens_ns: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Say when the engine hears of a stream, and whether of a token.

    As from a relay in the same process: of each token when it comes, and in a silence, after 250 ms, 500 ms and then
    every second, that none has.
    """
    for number, at_ns in enumerate(tokens_ns):
        if number:
            before_ns = tokens_ns[number - 1]
            silent_ns = [before_ns + after for after in _FIRST_EMPTY_NS]
            silent_ns += range(before_ns + _FIRST_EMPTY_NS[1] + S, at_ns, S)
            yield from ((instant, False) for instant in silent_ns if instant < at_ns)
        yield at_ns, True


def watch(rules: RuleSet, slo: SloClass, commit_ns: int, tokens_ns: Sequence[int], number: int = 1) -> list[Decision]:
    """Have the engine follow one stream from its commit to its last token; return its decisions."""
    key = (number.to_bytes(16, "big"), number.to_bytes(8, "big"), DEFAULT_TENANT, 0)
    view = View(key, Stream(slo, commit_ns), commit_ns)
    views = {view.key: view}
    engine = RuleEngine(rules)
    engine.update(view, commit_ns)
    decisions = engine.advance(commit_ns, views)
    for at_ns, token in reports(tokens_ns):
        decisions += engine.advance(at_ns - 1, views)
        if token:
            view.stream.extend((at_ns,))
        view.watermark_ns = at_ns
        engine.update(view, at_ns)
        decisions += engine.advance(at_ns, views)
    return decisions + engine.ended(view, tokens_ns[-1], tokens_ns[-1])


def triggers(decisions: Sequence[Decision]) -> dict[str, int]:
    """Return when each rule fired first, of those that did."""
    found: dict[str, int] = {}
    for one in decisions:
        if one.state == "firing":
            found.setdefault(one.rule, one.flip_ns)
    return found


def waits(tokens_ns: Sequence[int], pace_ns: int) -> list[Wait]:
    """Return the reader's stalls after the first token: those of a reply that was completed, each token read in turn.

    Written for this comparison from the definition (metrics.md, idle while reading), not with the engine's arithmetic.
    """
    found: list[Wait] = []
    dry_ns = tokens_ns[0] + pace_ns
    late = False
    for at_ns in tokens_ns[1:]:
        waited_ns = max(0, at_ns - dry_ns)
        if waited_ns and late:
            found[-1] = Wait(found[-1].start_ns, at_ns, found[-1].waited_ns + waited_ns)
        elif waited_ns:
            found.append(Wait(dry_ns, at_ns, waited_ns))
        late = waited_ns > 0
        dry_ns += waited_ns + pace_ns
    return found
