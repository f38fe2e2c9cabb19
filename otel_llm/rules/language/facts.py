"""The table of facts that a rule may use; the checker, the engine and the docs page read it.

To add a fact of a stream:

1. Declare it in `STREAM_FACTS` and give its value in `READ` of `snapshot.py`, as a function of the stream's tokens; the
   docstring of `snapshot.py` says why. Other data need a property of `StreamView`.
2. Give it a number by the steps in `core/rule_tables.py`. Without one, the engine evaluates all rules stream by stream
   once a rule uses the fact, which is slower; identity needs no number.
3. If it is missing until another fact has a value, declare that in `_NEEDS` of `intervals.py`; if it is never more than
   another, in `_AT_MOST`. By these, `otel-llm rules check` finds conditions that never hold.
4. Add it to the table in `tests/rules/language/test_fact_table.py`, and constants to compare it with to
   `tests/support/core/core_rules.py`: random rules then use it in a collector, a relay, a replay and a reload.
5. Run `pytest tests/rules tests/evaluate tests/core/test_rule_prefilter.py`.

To add one of instances and classes, declare it in `_NOW_FACTS` or `_WINDOW_STEMS` and give its value in
`engine/scope_facts.py`. For both, write anew what is generated, and read the differences:

    python -m otel_llm.rules.docs.facts_page docs/facts.md
    python -m otel_llm.rules.docs.reference docs/rules.md
    otel-llm rules schema > rules/rules.schema.json
    python tests/rules/lint/test_rule_mistakes.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from otel_llm.core import rule_tables as table

Scope = Literal["stream", "instance", "class"]
FactType = Literal["bool", "int", "double", "string"]
SCOPES: Final[tuple[Scope, ...]] = ("stream", "instance", "class")
WINDOWS: Final = ("1m", "5m", "30m", "1h", "6h", "3d")
SILENCE: Final = "silence_seconds"


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact: its name, its meaning, and how it changes in time.

    `before`: its value before the first token ("missing" or a literal; "" if the meaning gives one).
    `timed`: it is computed from the times of tokens, so it is missing while a segment is missing.
    `ages`: it is missing once it is older than a rule's `max_fact_age`; identity and the age itself never are.
    `linear`: between tokens it is linear in time (perhaps with a floor), so its crossings are computed.
    `steps`: between tokens it may change by steps (deadlines that pass), so it is evaluated every 100 ms.
    With neither, it changes only with tokens, or is identity.
    `signed`: it may be negative; of the unit 0..1 it is never above 1. `values`: its only texts besides "".
    `can_miss`: it is missing until something has happened, and not only when it is old or a segment is missing.
    `line`: its line in `slo.live.inflight.Lines`. `kernel`: the number by which `core.rule_prefilter` reads it from a
    stream's row; None for identity and for facts of instances and classes.
    """

    name: str
    type: FactType
    unit: str
    scopes: tuple[Scope, ...]
    meaning: str
    before: str = ""
    timed: bool = False
    ages: bool = True
    linear: bool = False
    steps: bool = False
    signed: bool = False
    values: tuple[str, ...] = ()
    can_miss: bool = False
    line: str = ""
    kernel: int | None = None


_STREAM: Final[tuple[Scope, ...]] = ("stream",)
_WINDOWED: Final[tuple[Scope, ...]] = ("instance", "class")


def _identity(name: str, meaning: str, scopes: tuple[Scope, ...], values: tuple[str, ...] = ()) -> Fact:
    return Fact(name, "string", "", scopes, meaning, before='"" if unknown', ages=False, values=values)


def _clock(line: str, kernel: int, meaning: str, before: str = "", *, signed: bool = False) -> Fact:
    return Fact(
        f"{line}_seconds",
        "double",
        "s",
        _STREAM,
        meaning,
        before,
        timed=True,
        linear=True,
        signed=signed,
        line=line,
        kernel=kernel,
    )


def _deadlines(name: str, meaning: str, kernel: int) -> Fact:
    return Fact(name, "int", "", _STREAM, meaning, timed=True, steps=True, can_miss=True, kernel=kernel)


STREAM_FACTS: Final[tuple[Fact, ...]] = (
    _identity("slo_class", "the request's SLO class", SCOPES),
    _identity("model", "the requested model", SCOPES),
    _identity("instance", "which replica serves it", ("stream", "instance")),
    _identity("measured_at", "client, relay or server", SCOPES, ("client", "relay", "server")),
    Fact("tokens", "int", "tokens", _STREAM, "tokens of any kind so far", "0", kernel=table.TOKENS),
    Fact(
        "tokens_read",
        "int",
        "tokens",
        _STREAM,
        "tokens so far that the class's user reads",
        "0",
        kernel=table.TOKENS_READ,
    ),
    _clock("age", table.AGE, "time since the commit"),
    Fact(
        "ttft_seconds",
        "double",
        "s",
        _STREAM,
        "time from the commit to the first token",
        "missing",
        timed=True,
        can_miss=True,
        kernel=table.TTFT,
    ),
    _clock("gap", table.GAP, "time since the last token of any kind", "since the commit"),
    _clock(
        "silence",
        table.SILENCE,
        "time since the last byte of the reply, keep-alives included; as the gap if the sender sees no bytes",
        "since the commit",
    ),
    _clock("idle", table.IDLE, "how long the user has sat without text to read, so far"),
    _clock("idle_decode", table.IDLE_DECODE, "the same from the first token read on", "0.0"),
    _clock("runway", table.RUNWAY, "reading time of the text still unread; negative while the user waits", signed=True),
    Fact(
        "rate_tokens_per_second",
        "double",
        "tokens/s",
        _STREAM,
        "(tokens read - 1) / time from the first of them to the last",
        "missing, until the second",
        timed=True,
        can_miss=True,
        kernel=table.RATE,
    ),
    _deadlines("deadlines", "token deadlines so far, overdue ones included", table.DEADLINES),
    _deadlines("deadline_misses", "deadlines missed so far, overdue ones included", table.DEADLINE_MISSES),
    Fact(
        "fluidity_index",
        "double",
        "0..1",
        _STREAM,
        "deadlines met / deadlines so far",
        "missing while there are no deadlines",
        timed=True,
        steps=True,
        can_miss=True,
        kernel=table.FLUIDITY,
    ),
    Fact(
        "fact_age_seconds",
        "double",
        "s",
        _STREAM,
        "the stream's now less its watermark",
        ages=False,
        linear=True,
        signed=True,  # looking back from a watermark, an earlier instant lies before it
        kernel=table.FACT_AGE,
    ),
    Fact(
        "exact_resume",
        "bool",
        "",
        _STREAM,
        "the stream's owner can resume it token for token",
        "false where absent",
        ages=False,
    ),
    Fact(
        "token_basis",
        "string",
        "",
        _STREAM,
        "how its tokens are counted: exact, chunk or estimated",
        "missing",
        ages=False,
        values=("exact", "chunk", "estimated"),
        can_miss=True,
    ),
    Fact(
        "token_ratio_learned",
        "bool",
        "",
        _STREAM,
        "an estimate of its tokens uses what earlier replies of the model have stated",
        "missing",
        ages=False,
        can_miss=True,
    ),
)

_NOW_FACTS: Final[tuple[Fact, ...]] = (
    Fact("streams", "int", "", _WINDOWED, "streams in flight now"),
    Fact("starving", "int", "", _WINDOWED, "of them, those whose user is known to wait for text now"),
    Fact("starving_share", "double", "0..1", _WINDOWED, "starving / streams for which that is known"),
)

_WINDOW_STEMS: Final[tuple[tuple[str, FactType, str, str], ...]] = (
    ("requests", "int", "", "requests that ended"),
    ("attainment", "double", "0..1", "met / (met + not met)"),
    ("burn_rate", "double", "", "(1 - attainment) / (1 - the class's objective)"),
    ("smooth_goodput", "double", "tokens/s", "benefit earned in it, streams in flight included / the window"),
    ("goodput", "double", "tokens/s", "tokens read of requests that met / the window"),
    ("idle_p99", "double", "s", "99th percentile of the idle time of requests that ended"),
    ("queue_p99", "double", "s", "99th percentile of the time in the queue, of requests that ended and say it"),
    ("fluidity_ok_share", "double", "0..1", "requests at or above the class's fluidity objective"),
    ("cut_share", "double", "0..1", "requests whose reply was cut by its length or a content filter"),
    ("aborted_share", "double", "0..1", "requests that the server's side ended (error, disconnected)"),
)

WINDOW_FACTS: Final[tuple[Fact, ...]] = _NOW_FACTS + tuple(
    Fact(f"{stem}_{window}", type_, unit, _WINDOWED, f"{meaning}, over {window}", signed=stem == "smooth_goodput")
    for stem, type_, unit, meaning in _WINDOW_STEMS
    for window in WINDOWS
)

FACTS: Final[dict[str, Fact]] = {fact.name: fact for fact in STREAM_FACTS + WINDOW_FACTS}
LABELS: Final = ("slo_class", "model", "instance", "measured_at")
"""The facts by which an alert may be aggregated: identity with few values."""


def in_scope(scope: Scope) -> dict[str, Fact]:
    """Return the facts of one scope by name, in the table's order."""
    return {name: fact for name, fact in FACTS.items() if scope in fact.scopes}
