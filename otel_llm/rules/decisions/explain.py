"""`otel-llm rules explain`: one transition of a rule in words, from its decision records and, if known, its rule."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from otel_llm.formats.records import tenant_words
from otel_llm.rules.decisions.decision_records import Outcome, shown, stream_of
from otel_llm.rules.language.facts import FACTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.rules.decisions.transitions import Transition
    from otel_llm.rules.files.ruleset import Rule

OUTCOMES: Final[Mapping[Outcome, str]] = {
    "shadow": "it would have been done, and was not: the action is in shadow",
    "sent": "handed to its receiver",
    "queued": "kept until its receiver takes it: it was away or behind, or the service was starting",
    "dropped: table full": "not sent: as many alerts were kept as may be, all of them firing",
    "done": "done (of an alert: recorded, no receiver is configured)",
    "unconfirmed": "asked for, but its effect was not seen",
    "failed": "tried, and it failed",
    "budget": "not done: a limit of its budget was reached",
    "only_if": "not done: its `only_if` did not hold",
    "expired": "not done: it was too old by then",
    "resolved": "the condition was over",
    "ended": "the stream was over",
    "refuted": "taken back: a token that was under way showed that the condition had not held",
}
"""Each outcome in words; a test compares the keys with the outcomes."""
_KNOWN: Final = frozenset(
    [
        *("time_unix_nano", "flip_unix_nano", "now_offset_nano", "group", "rule", "rule_hash", "scope", "labels"),
        *(
            "trace_id",
            "span_id",
            "tenant",
            "choice",
            "state",
            "action",
            "action_index",
            "attempt",
            "mode",
            "outcome",
            "facts",
            "fact_age_seconds",
        ),
        *("budget", "candidates", "detail", "from", "to", "tokens_carried", "gap_seconds"),
    ]
)
"""The fields that the text mentions; the others are listed as they are."""
_REFUTED_MOVE: Final = "given up, and attempted again: the stream went on at its source first"
_FAR_NS: Final = 1_000_000_000


def explain(one: Transition, before: Transition | None, after: Transition | None, rule: Rule | None) -> list[str]:
    """Return lines on what happened, why, what was decided, and what followed.

    `before`, `after`: the transitions of the same rule and subject before and after; `rule`: the rule of the record's
    hash, if it is known.
    """
    record = one.first
    verb = "began to fire" if one.firing else "stopped firing"
    lines = [f"{record['rule']} {verb}: {_time(one.flip_ns)}", "", *_who(record, one)]
    lines += ["", *(_why_firing(record, rule) if one.firing else _why_over(record, rule))]
    if one.firing:
        lines += ["", "Decided:", *(line for each in one.records for line in _action(each))]
    more = {key: value for each in one.records for key, value in each.items() if key not in _KNOWN}
    lines += [f"Also recorded: {key} = {value}" for key, value in more.items()]
    return [*lines, "", _next(one, before, after)]


def headline(one: Transition) -> str:
    """Return one line on a transition: its id, its time, the rule, the outcomes, the subject."""
    outcomes = ", ".join(
        each["outcome"] if each.get("action") is None else f"{each['action']} {each['outcome']}" for each in one.records
    )
    return f"{one.id}  {_time(one.flip_ns)}  {one.first['rule']} {one.first['state']}: {outcomes}  {_about(one.first)}"


def _who(record: Mapping[str, Any], one: Transition) -> list[str]:
    latency_ns = int(record.get("time_unix_nano", one.flip_ns)) - one.flip_ns
    fact_age_s = float(record.get("fact_age_seconds", 0.0))
    lines = [
        f"  id        {one.id}",
        f"  of        {_about(record)}",
        f"  rule      group {record.get('group')}, scope {record.get('scope')}, hash {record['rule_hash']}",
        f"  recorded  {_length(latency_ns)} after that instant, by telemetry {fact_age_s:.3f} s old",
    ]
    offset_ns = int(record.get("now_offset_nano", 0))
    if abs(offset_ns) >= _FAR_NS:
        lines.append(
            f"  clocks    the stream's own is {_length(abs(offset_ns))} {'ahead' if offset_ns > 0 else 'behind'}"
        )
    return lines


def _why_firing(record: Mapping[str, Any], rule: Rule | None) -> list[str]:
    lines = ["Because, at that instant,"]
    if rule is not None:
        held = f" had held for {_length(rule.for_ns)}" if rule.for_ns else " began to hold"
        lines.append(f"  {rule.when.text}{held}:")
    return [*lines, *_facts(record), *_unknown_rule(rule)]


def _why_over(record: Mapping[str, Any], rule: Rule | None) -> list[str]:
    outcome = str(record["outcome"])
    lines = [f"Because {OUTCOMES.get(outcome, outcome)}."]  # type: ignore[call-overload]
    if rule is not None and outcome == "resolved":
        quiet = f" for {_length(rule.keep_firing_for_ns)}" if rule.keep_firing_for_ns else ""
        resolve = "" if rule.resolve_when is None else f", and this held: {rule.resolve_when.text}"
        lines.append(f"  This had not held{quiet}: {rule.when.text}{resolve}")
    return [*lines, "The facts then:", *_facts(record), *_unknown_rule(rule)]


def _unknown_rule(rule: Rule | None) -> list[str]:
    if rule is not None:
        return []
    return ["  (its condition is not known: no rule that is loaded has this hash; name its file with --rules)"]


def _facts(record: Mapping[str, Any]) -> list[str]:
    facts: Mapping[str, Any] = record["facts"]
    wide = max((len(name) for name in facts), default=0)
    values = {name: _value(name, value) for name, value in facts.items()}
    wider = max((len(value) for value in values.values()), default=0)
    return [
        f"    {name:<{wide}}  {values[name]:<{wider}}  {FACTS[name].meaning if name in FACTS else ''}".rstrip()
        for name in facts
    ]


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    unit = FACTS[name].unit if name in FACTS and value is not None else ""
    return f"{shown(value)} {unit}" if unit and unit != "0..1" else shown(value)


def _action(record: Mapping[str, Any]) -> list[str]:
    outcome = str(record["outcome"])
    moved = "from" in record
    words = _REFUTED_MOVE if moved and outcome == "refuted" else OUTCOMES.get(outcome, outcome)  # type: ignore[call-overload]
    attempt = f", attempt {record['attempt']}" if record.get("attempt", 1) > 1 else ""
    lines = [f"  {record.get('action')} ({record.get('mode')}{attempt}): {outcome}: {words}"]
    if moved:
        lines.append(f"    {_move(record)}")
    if record.get("detail"):
        lines.append(f"    {record['detail']}")
    for limit, within in (record.get("budget") or {}).items():
        lines.append(f"    {limit}: {'within it' if within else 'reached'}")
    for number, each in enumerate(record.get("candidates") or (), 1):
        score = ", ".join(f"{name} {shown(value)}" for name, value in each.get("score", {}).items())
        chosen = ", the first of those compared" if number == 1 else ""
        who = each.get("instance") or f"{each.get('trace_id')} ({each.get('slo_class')})"
        reason = f"; {each['reason']}" if each.get("reason") else ""
        lines.append(f"    candidate {who}: {score}{chosen}{reason}")
    return lines


def _move(record: Mapping[str, Any]) -> str:
    to, carried, gap_s = (record.get(name) for name in ("to", "tokens_carried", "gap_seconds"))
    words = f"from {record['from']}" + ("" if to is None else f" to {to}")
    words += "" if carried is None else f", {carried} token{'' if carried == 1 else 's'} carried"
    return words + ("" if gap_s is None else f", {gap_s:.3f} s without new text")


def _next(one: Transition, before: Transition | None, after: Transition | None) -> str:
    if one.firing:
        if after is None or after.firing:
            return "It fires still, or its end is not in these files."
        length_ns = after.flip_ns - one.flip_ns
        return f"It ended as {after.first['outcome']}, {_length(max(0, length_ns))} later: {after.id}"
    if before is None or not before.firing:
        return "When it began is not in these files."
    return f"It had begun {_length(max(0, one.flip_ns - before.flip_ns))} before: {before.id}"


def _about(record: Mapping[str, Any]) -> str:
    if "labels" in record:
        return ", ".join(f"{name} {value}" for name, value in sorted(record["labels"].items()))
    trace_id, span_id, tenant, choice = stream_of(record)
    return f"trace {trace_id}, request span {span_id}" + (f", choice {choice}" if choice else "") + tenant_words(tenant)


def _time(unix_ns: int) -> str:
    whole, rest_ns = divmod(unix_ns, 1_000_000_000)
    try:
        return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%d %H:%M:%S}.{rest_ns:09d} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{unix_ns} ns"


def _length(length_ns: int) -> str:
    return f"{length_ns / 1e6:.3f} ms" if abs(length_ns) < 1_000_000_000 else f"{length_ns / 1e9:.3f} s"
