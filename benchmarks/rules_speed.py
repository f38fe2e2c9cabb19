"""What live rules cost: one evaluation, one segment of a stream, and ten thousand streams in flight.

    python benchmarks/rules_speed.py [streams]

Times are microseconds on one core, best of several runs. The table is simulated on a virtual clock: streams of 50
tokens/s, a segment every 250 ms each; one in twenty is slower than its reader and stalls for seconds at a time.
`cores` is the time spent in the engine over the time simulated.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_llm.rules.condition import condition
from otel_llm.rules.engine import RuleEngine
from otel_llm.rules.load import load_rules
from otel_llm.rules.ruleset import Rule, RuleSet
from otel_llm.rules.shipped import shipped_rules_dir
from otel_llm.slo.classes import SloClass
from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

T0_NS = 1_790_000_000_000_000_000
MS = 1_000_000
WHEN = 'slo_class == "chat" && tokens_read > 0 && runway_seconds < 0.2 && gap_seconds > 0.5'
RUNS = 5


@dataclass(slots=True)
class View:
    """A stream as the engine is shown it."""

    key: tuple[bytes, bytes, int]
    stream: Stream
    offset_ns: int
    watermark_ns: int
    slo_class: str = "chat"
    model: str = "m"
    instance: str = "a"
    measured_at: str = "client"
    exact_resume: bool = True
    has_gap: bool = False


def best_us(run: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in range(times):
            run()
        best = min(best, time.perf_counter() - start)
    return best / times * 1e6


def evaluation() -> None:
    program = condition(WHEN, "stream").program
    facts: dict[str, Any] = {"slo_class": "chat", "tokens_read": 9, "runway_seconds": 0.1, "gap_seconds": 0.7}
    values = [facts[name] for name in program.facts]
    print(f"{'ours, all four comparisons':40} {best_us(lambda: program.run(*values), 100_000):8.3f} us")
    try:
        from cel_expr_python import cel
    except ImportError:
        print("cel-expr-python is not installed here: no figure beside it")
        return
    kinds = {str: cel.Type.STRING, int: cel.Type.INT, float: cel.Type.DOUBLE}
    expression = cel.NewEnv(variables={name: kinds[type(value)] for name, value in facts.items()}).compile(WHEN)
    print(f"{'Google CEL (C++), the same':40} {best_us(lambda: expression.eval(data=facts).value(), 20_000):8.3f} us")


def service(rules: RuleSet, streams: int, seconds: float) -> tuple[float, int, int]:
    """Return the seconds spent in the engine, looks at streams and decisions."""
    rng = random.Random(1)
    engine = RuleEngine(rules)
    views: dict[tuple[bytes, bytes, int], View] = {}
    slo = SloClass()
    order = []
    for number in range(streams):
        key = number.to_bytes(16, "big"), number.to_bytes(8, "big"), 0
        commit = T0_NS + rng.randrange(250 * MS)
        views[key] = View(key, Stream(slo, commit), -10 * MS, commit)
        order.append((commit, key))
    order.sort()
    spent, updates, decided = 0.0, 0, 0
    for flush in range(int(seconds * 4)):
        for commit, key in order:
            view = views[key]
            end = commit + flush * 250 * MS
            receipt = end + 10 * MS
            starved = key[0][-1] % 20 == 0
            stalled = starved and flush % 16 >= 8
            if flush and not stalled:
                view.stream.extend([end - 100 * MS] if starved else range(end - 240 * MS, end, 20 * MS))
            if stalled and flush % 4:
                continue  # silent: an empty segment a second
            start = time.perf_counter()
            decided += len(engine.advance(receipt - 1, views))
            spent += time.perf_counter() - start
            view.watermark_ns = end
            start = time.perf_counter()
            engine.update(view, receipt)
            decided += len(engine.advance(receipt, views))
            spent += time.perf_counter() - start
            updates += 1
    return spent, updates, decided


def main() -> None:
    streams = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    gc.disable()
    print("One evaluation of a rule's condition")
    evaluation()
    shipped = load_rules([shipped_rules_dir()])
    one = RuleSet(shipped.rules[:1])
    eight = RuleSet(tuple(_named(rule, number) for number in range(4) for rule in shipped.rules))
    seconds = 4.0
    print(f"\n{streams} streams in flight, {seconds:g} s, a segment each every 250 ms, one in twenty starved")
    print(f"{'rules':>6} {'segments':>9} {'decisions':>10} {'us a segment':>13} {'cores':>6}")
    for rules in (one, shipped, eight):
        spent, updates, decided = service(rules, streams, seconds)
        count = len(rules.stream_rules)
        print(f"{count:>6} {updates:>9} {decided:>10} {spent / updates * 1e6:>13.1f} {spent / seconds:>6.2f}")


def _named(rule: Rule, number: int) -> Rule:
    values = {name: getattr(rule, name) for name in rule.__slots__ if name not in ("hash", "name")}
    return Rule(name=f"{rule.name}{number}", **values)


if __name__ == "__main__":
    main()
