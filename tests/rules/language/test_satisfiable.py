"""What can hold is never called impossible: worked cases, and every random condition that holds for random facts."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest
from rules.scripted import COMMIT, MS, View

from otel_llm.rules.engine.history import snapshot_at
from otel_llm.rules.language.arithmetic import Undefined, add, divide, multiply, subtract
from otel_llm.rules.language.compile import compile_expression, used_facts
from otel_llm.rules.language.facts import FACTS, Scope, in_scope
from otel_llm.rules.language.intervals import Choice, Span, agree, calculated, domain, negated
from otel_llm.rules.language.satisfiable import MOST_BOXES, boxes, example, extent, full_box
from otel_llm.rules.language.snapshot import Snapshot
from otel_llm.rules.language.tokens import INT_MAX, INT_MIN, ExpressionError
from otel_llm.rules.language.types import check
from otel_llm.slo.classes import SloClass
from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from otel_llm.rules.language.types import Typed


def typed(text: str, scope: Scope = "stream") -> Typed:
    return check(text, in_scope(scope))


def may(text: str, want: bool = True, scope: Scope = "stream") -> bool:
    node = typed(text, scope)
    return bool(boxes(node, want, full_box(node)))


@pytest.mark.parametrize(
    "text",
    [
        "fluidity_index > 1.0",
        "fluidity_index < 0.0",
        "tokens < 0",
        "-1 > tokens",
        "gap_seconds < 0.0",
        "gap_seconds == -0.5",
        "tokens + 1 < 1",
        "tokens * 2 < 0",
        "-tokens > 0",
        "tokens / 2 < 0",
        "gap_seconds + age_seconds < 0.0",
        "fluidity_index * 100.0 > 100.0",
        "1.0 - fluidity_index > 1.0",
        "runway_seconds < 0.2 && runway_seconds > 1.0",
        "runway_seconds < 0.2 && runway_seconds >= 0.2",
        "runway_seconds == 0.2 && runway_seconds != 0.2",
        "tokens > 3 && tokens < 4",
        "!(gap_seconds >= 0.0)",
        "!(tokens > 5 || tokens < 6)",
        "tokens > 5 && !(tokens > 4)",
        'slo_class == "chat" && slo_class == "code"',
        'slo_class == "chat" && slo_class != "chat"',
        'slo_class in ["a", "b"] && slo_class in ["c"]',
        'slo_class in ["a", "b"] && !(slo_class in ["b", "a"])',
        'slo_class == "b" && slo_class < "b"',
        'measured_at == "proxy"',
        'measured_at in ["proxy", "gateway"]',
        'measured_at > "z"',
        "exact_resume && !exact_resume",
        "exact_resume == (tokens < 0) && exact_resume",
        "tokens_read > tokens",
        "tokens > 7 && tokens < tokens_read",
        "deadline_misses > deadlines",
        "gap_seconds > age_seconds",
        "gap_seconds > 3.0 && age_seconds < 3.0",
        "tokens == 0 && ttft_seconds > 2.0",
        "tokens_read < 2 && rate_tokens_per_second < 5.0",
        "deadlines < 1 && fluidity_index < 0.5",
        "model != model",
        "gap_seconds < gap_seconds",
        "false",
        "tokens > 1 && (gap_seconds < 0.0 || fluidity_index > 1.5)",
        "tokens * 9223372036854775807 > 0 && tokens > 1",
        "tokens in [-1, -2]",
        "9223372036854775807 < tokens",
    ],
)
def test_never(text: str) -> None:
    assert not may(text)


@pytest.mark.parametrize(
    "text",
    [
        "fluidity_index >= 1.0",
        "fluidity_index <= 0.0",
        "tokens <= 0",
        "runway_seconds < -100.0",
        "runway_seconds >= 0.2 && runway_seconds <= 0.2",
        "tokens > 3 && tokens < 5",
        "tokens_read >= tokens",
        "deadline_misses == deadlines",
        'measured_at == "" && instance == ""',
        'measured_at == "relay"',
        'slo_class > "a" && slo_class < "b"',
        "1.0 / gap_seconds > 1e300",
        "gap_seconds / gap_seconds != gap_seconds / gap_seconds",
        "!(gap_seconds / age_seconds >= 0.0)",
        "runway_seconds * runway_seconds < 0.0 || tokens == 3",
        "tokens / deadlines > 100",
        "tokens - deadlines < 0",
        "exact_resume == (tokens > 3)",
        "gap_seconds > 0.5 && gap_seconds < 0.5000000000000002",
    ],
)
def test_sometimes(text: str) -> None:
    assert may(text)


@pytest.mark.parametrize(
    "text",
    [
        "tokens >= 0",
        "gap_seconds >= 0.0",
        "fluidity_index <= 1.0",
        'measured_at != "proxy"',
        "age_seconds > -1.0",
        "tokens >= tokens_read",
        "tokens > 3 || tokens < 5",
        "runway_seconds < 1.0 || runway_seconds >= 1.0",
        "true",
    ],
)
def test_always(text: str) -> None:
    assert not may(text, want=False)


def test_shares_of_windows_and_sums_that_may_be_negative() -> None:
    assert not may("burn_rate_5m < 0.0", scope="class")
    assert not may("attainment_1h > 1.0", scope="class")
    assert may("smooth_goodput_5m < -10.0", scope="class")
    assert not may("starving > streams", scope="instance")
    assert may("burn_rate_5m > 14.4 && requests_5m >= 20", scope="class")


def test_known_classes_close_the_set() -> None:
    node = typed('slo_class == "chta"')
    assert boxes(node, True, full_box(node))
    assert not boxes(node, True, full_box(node, classes=frozenset({"chat", "code"})))


def test_what_a_fact_must_be_for_a_condition_to_hold() -> None:
    node = typed("gap_seconds > 0.5 && (tokens >= 4 || tokens == 2) && runway_seconds < gap_seconds")
    found = boxes(node, True, full_box(node))
    assert extent("tokens", found) == Span(2, INT_MAX, whole=True)
    assert extent("gap_seconds", found) == Span(math.nextafter(0.5, 1), math.inf, whole=False)
    assert extent("age_seconds", found) is None


def test_an_example_holds() -> None:
    when, resolve = typed("gap_seconds > 1.0 && tokens_read > 3"), typed("runway_seconds > 3.0")
    both = boxes(resolve, True, boxes(when, True, full_box(when, resolve)))
    assert example([when, resolve], both) == {"gap_seconds": 2.0, "tokens_read": 5, "runway_seconds": 4.0}


def test_a_great_many_alternatives_stay_bounded_and_sound() -> None:
    text = " && ".join(f"(tokens == {at} || gap_seconds > {at}.0 || runway_seconds < {at}.5)" for at in range(60))
    node = typed(text)
    found = boxes(node, True, full_box(node))
    assert 0 < len(found) <= MOST_BOXES


LITERALS = {
    "double": ["0.0", "-0.0", "1.0", "0.5", "-1.5", "1e308", "4.9e-324", "0.1", "2.0", "0.30000000000000004"],
    "int": ["0", "1", "2", "-1", "3", "-7", "9223372036854775807", "-9223372036854775808", "10"],
    "string": ['""', '"client"', '"server"', '"relay"', '"chat"', '"proxy"', '"a"'],
    "bool": ["true", "false"],
}


class Writer:
    """Writes random conditions over the facts of a scope, literals near the edges of their ranges."""

    def __init__(self, seed: int, scope: Scope) -> None:
        self.random = random.Random(seed)
        self.names: dict[str, list[str]] = {}
        for name, fact in in_scope(scope).items():
            if not name.endswith(("_30m", "_1h", "_6h", "_3d")):
                self.names.setdefault(fact.type, []).append(name)
        for names in self.names.values():
            # Few facts, so that they meet themselves.
            self.random.shuffle(names)
            del names[4:]

    def leaf(self, type_: str) -> str:
        own = self.names.get(type_, [])
        return self.random.choice(own if own and self.random.random() < 0.65 else LITERALS[type_])

    def number(self, type_: str, depth: int) -> str:
        if depth <= 0 or self.random.random() < 0.5:
            return self.leaf(type_)
        if self.random.random() < 0.15:
            return f"-({self.number(type_, depth - 1)})"
        return f"({self.number(type_, depth - 1)} {self.random.choice('+-*/')} {self.number(type_, depth - 1)})"

    def condition(self, depth: int) -> str:
        kind = self.random.choice(["&&", "&&", "||", "!", "compare", "compare", "in", "same", "leaf"])
        if depth <= 0 or kind == "leaf":
            kind = "compare"
        if kind in ("&&", "||"):
            return "(" + f" {kind} ".join(self.condition(depth - 1) for _ in range(self.random.randint(2, 3))) + ")"
        if kind == "!":
            return f"!({self.condition(depth - 1)})"
        if kind == "same":
            return f"(({self.condition(depth - 1)}) {self.random.choice(['==', '!='])} ({self.condition(depth - 1)}))"
        type_ = self.random.choice(["int", "double", "double", "string"])
        left = self.leaf(type_) if type_ == "string" else self.number(type_, 2)
        if kind == "in":
            return f"({left} in [{', '.join(self.leaf(type_) for _ in range(self.random.randint(1, 3)))}])"
        right = self.leaf(type_) if type_ == "string" else self.number(type_, 1)
        return f"({left} {self.random.choice(['==', '!=', '<', '<=', '>', '>='])} {right})"

    def value(self, name: str) -> Any:
        values = domain(name)
        if isinstance(values, Choice):
            return self.random.choice(sorted(values.allowed, key=str) if values.allowed else ["", "chat", "a", "b"])
        if values.whole:
            return self.random.choice([0, 1, 2, 3, 10, 11, 2**62, INT_MAX])
        edges = [0.0, 0.5, 1.0, 0.1, 4.9e-324, math.nextafter(0.5, 1), math.nextafter(1.0, 0)]
        if values.high > 1:
            edges += [1.5, 2.0, 3.0, 1e308, 7.25]
        if values.low < 0:
            edges += [-edge for edge in edges]
        return self.random.choice(edges)


@pytest.mark.parametrize("scope", ["stream", "class"])
@pytest.mark.parametrize("seed", range(3))
def test_what_holds_for_some_facts_is_never_called_impossible(seed: int, scope: Scope) -> None:
    writer = Writer(seed, scope)
    nevers = alwayses = held = 0
    for _ in range(600):
        text = writer.condition(3)
        try:
            node = typed(text, scope)
        except ExpressionError:
            continue
        start = full_box(node)
        can = {want: boxes(node, want, start) for want in (True, False)}
        nevers += not can[True]
        alwayses += not can[False]
        program = compile_expression(node)
        for _ in range(12):
            values = {name: writer.value(name) for name in used_facts(node)}
            if not agree(values):
                continue
            try:
                truth = bool(program.run(*values.values()))
            except Undefined:
                continue
            held += truth
            assert can[truth], (text, values)
            assert any(all(inside(values[name], one[name]) for name in values) for one in can[truth]), (text, values)
    # Both verdicts must be reached often, or nothing is said.
    assert nevers > 30
    assert alwayses > 30
    assert held > 500


def inside(value: Any, values: Span | Choice) -> bool:
    if isinstance(values, Span):
        return bool(values.low <= value <= values.high)
    return value not in values.excluded if values.allowed is None else value in values.allowed


@pytest.mark.parametrize("seed", range(3))
def test_arithmetic_stays_within_its_span(seed: int) -> None:
    chance = random.Random(seed)
    ints = [0, 1, -1, 2, -2, 7, -7, 2**62, -(2**62), INT_MAX, INT_MIN]
    doubles = [0.0, -0.0, 1.0, -1.0, 0.1, 1e308, -1e308, 5e-324, math.inf, -math.inf, 3.7]
    apply = {"+": add, "-": subtract, "*": multiply, "/": divide}
    for _ in range(4_000):
        whole = chance.random() < 0.5
        pool: list[Any] = ints if whole else doubles
        (a, b), (c, d) = (sorted(chance.sample(pool, 2)) for _ in "lr")
        op = chance.choice("+-*/")
        result = calculated(op, Span(a, b, whole), Span(c, d, whole))
        left, right = (chance.choice([one for one in pool if low <= one <= high]) for low, high in ((a, b), (c, d)))
        try:
            value = apply[op](left, right)
        except Undefined:
            continue
        assert result is not None
        fits = result.nan if value != value else result.low <= value <= result.high
        assert fits, (op, (a, b), (c, d), left, right)
        negative = negated(Span(a, b, whole))
        if not whole or -left in range(INT_MIN, INT_MAX + 1):
            assert negative is not None
            assert negative.low <= -left <= negative.high


def test_every_fact_has_a_range() -> None:
    for name, fact in FACTS.items():
        values = domain(name)
        assert isinstance(values, Choice) is (fact.type in ("bool", "string")), name


@pytest.mark.parametrize("seed", range(4))
def test_the_facts_of_real_streams_lie_in_their_ranges(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        slo = SloClass(reads=chance.choice([SloClass().reads, (0, 1, 2)]))
        stream = Stream(slo, COMMIT)
        at = COMMIT
        for _ in range(chance.randrange(30)):
            at += chance.choice([0, 1, 20 * MS, 300 * MS, 5_000 * MS])
            stream.extend([at], [chance.choice([0, 0, 0, 1, 2])])
        now = Snapshot(View(stream, exact_resume=chance.random() < 0.5, watermark_ns=at + chance.choice([0, 250 * MS])))
        for x in (at, at + 1, at + 700 * MS, at + 10**12, COMMIT, COMMIT + chance.randrange(at - COMMIT + 1)):
            then = snapshot_at(now, x)
            read = {name: then.value(name, x) for name in in_scope("stream")}
            values = {name: value for name, value in read.items() if value is not None}
            for name, value in values.items():
                assert inside(value, domain(name)), (name, value)
            assert agree(values), values
