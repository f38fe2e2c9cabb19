"""Decision records read back as transitions: a rule that began to fire, or stopped, with all decisions of that flip.

Each has an id: the first 16 hex digits of SHA-256 over the JSON array [rule hash, subject, state, flip], which is the
identity of a decision. So it is the same in every copy of the file and after a restart.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.rules.decisions.decision_records import read_left_out, stream_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ID_DIGITS: Final = 16
SHORTEST_PREFIX: Final = 4
_MUST: Final[dict[str, type]] = {
    "rule": str,
    "rule_hash": str,
    "state": str,
    "outcome": str,
    "flip_unix_nano": int,
    "facts": dict,
}
_MAY: Final[dict[str, type | tuple[type, ...]]] = {
    "time_unix_nano": int,
    "now_offset_nano": int,
    "fact_age_seconds": (int, float),
    "attempt": int,
    "budget": dict,
    "candidates": list,
    "from": str,
    "to": (str, type(None)),
    "tokens_carried": (int, type(None)),
    "gap_seconds": (int, float, type(None)),
}
"""The types of the fields that the text mentions; other fields are listed as they are."""
_PREFIX: Final = re.compile(f"[0-9a-f]{{{SHORTEST_PREFIX},{ID_DIGITS}}}", re.ASCII)


@dataclass(slots=True)
class Transition:
    """The decisions of a rule at one flip: `records`, one for each action, or one for the end of a firing."""

    id: str
    records: list[dict[str, Any]]

    @property
    def first(self) -> dict[str, Any]:
        """Return the first of its records: they differ only in actions, modes, outcomes and budgets."""
        return self.records[0]

    @property
    def firing(self) -> bool:
        """Tell whether the rule began to fire."""
        return bool(self.first["state"] == "firing")

    @property
    def flip_ns(self) -> int:
        """Return the flip on the collector's clock: unix ns."""
        return int(self.first["flip_unix_nano"]) - int(self.first.get("now_offset_nano", 0))


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search by id or prefix: `matches` by id; for a single one, its neighbours of the same firing."""

    matches: dict[str, Transition]
    before: Transition | None = None
    after: Transition | None = None
    broken: int = 0
    """Lines that are no decision records."""
    records: int = 0
    """Lines that are decision records."""
    left_out: int = 0
    """Decisions without a record, as the counts in the files say."""


class Newest(NamedTuple):
    """The latest transitions, oldest first; the number of other lines, the rules of the records, what was left out."""

    transitions: list[Transition]
    broken: int
    rules: dict[str, int]
    """The number of records by rule."""
    left_out: int
    """Decisions without a record, as the counts in the files say."""


class NoIdError(ValueError):
    """A text cannot be an id."""


def find(prefix: str, lines: Callable[[], Iterable[str]]) -> Found:
    """Find the transitions whose ids begin with a prefix; `lines` gives the records' lines, and is called twice.

    Raises NoIdError for a text that cannot be an id.
    """
    prefix = prefix.lower()
    if not _PREFIX.fullmatch(prefix):
        raise NoIdError(f"{prefix!r} is no id: it has {SHORTEST_PREFIX} to {ID_DIGITS} hex digits, see --list")
    matches: dict[str, Transition] = {}
    counts: Counter[str] = Counter()
    for record in _records(lines(), counts):
        if (name := id_of(record)).startswith(prefix):
            matches.setdefault(name, Transition(name, [])).records.append(record)
    broken, records, left_out = counts["broken"], counts["records"], counts["left_out"]
    if len(matches) != 1:
        return Found(matches, broken=broken, records=records, left_out=left_out)
    (one,) = matches.values()
    thread: dict[str, Transition] = {}
    for record in _records(lines(), Counter()):
        if record["rule_hash"] == one.first["rule_hash"] and about_of(record) == about_of(one.first):
            name = id_of(record)
            thread.setdefault(name, Transition(name, [])).records.append(record)
    # By their flips, not by their lines: an enforced action is written when its outcome is known.
    order = sorted(thread.values(), key=_in_time)
    at = [other.id for other in order].index(one.id) if one.id in thread else len(order)
    before = order[at - 1] if 0 < at <= len(order) else None
    after = order[at + 1] if at + 1 < len(order) else None
    return Found(matches, before, after, broken, records, left_out)


def newest(lines: Iterable[str], count: int, *, rule: str | None = None, trace: str = "") -> Newest:
    """Return the last transitions, optionally of one rule, or of traces whose id begins or ends with `trace`."""
    kept: OrderedDict[str, Transition] = OrderedDict()
    rules: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for record in _records(lines, counts):
        rules[record["rule"]] += 1
        of = str(record.get("trace_id", ""))
        if rule not in (None, record["rule"]) or not (of.startswith(trace) or of.endswith(trace)):
            continue
        name = id_of(record)
        if name not in kept:
            kept[name] = Transition(name, [])
            if len(kept) > count:
                kept.popitem(last=False)
        kept[name].records.append(record)
    return Newest(list(kept.values()), counts["broken"], rules, counts["left_out"])


def _records(lines: Iterable[str], counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield the decision records among lines; count them, broken lines, and decisions without a record."""
    for line in lines:
        record = read_record(line)
        if record is not None:
            counts["records"] += 1
            yield record
        elif left_out := _counted(line):
            counts["left_out"] += left_out
        else:
            counts["broken"] += 1


def read_record(line: str) -> dict[str, Any] | None:
    """Read one line; None if it is no decision record."""
    try:
        record = json.loads(line)
        about_of(record)
        whole = all(isinstance(record[name], kind) for name, kind in _MUST.items()) and all(
            isinstance(record[name], kind) for name, kind in _MAY.items() if name in record
        )
        whole = whole and all(isinstance(each["score"], dict) for each in record.get("candidates", ()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return record if whole else None


def id_of(record: dict[str, Any]) -> str:
    """Return the id of the transition to which a record belongs."""
    what = [record["rule_hash"], about_of(record), record["state"], int(record["flip_unix_nano"])]
    return hashlib.sha256(json.dumps(what, separators=(",", ":")).encode()).hexdigest()[:ID_DIGITS]


def about_of(record: dict[str, Any]) -> list[Any]:
    """Return the subject of a record: trace id, span id, tenant and choice, or labels as sorted pairs."""
    if "labels" in record:
        return [[str(name), str(value)] for name, value in sorted(record["labels"].items())]
    return list(stream_of(record))


def _counted(line: str) -> int:
    """Return how many decisions a line counts as left out; 0 for any other line."""
    try:
        found = read_left_out(json.loads(line))
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return 0 if found is None else found.count


def _in_time(transition: Transition) -> tuple[int, bool]:
    # A refuted end has the flip of the firing that it takes back.
    return int(transition.first["flip_unix_nano"]), not transition.firing
