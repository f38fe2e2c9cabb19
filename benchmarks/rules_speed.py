"""What live rules cost: one evaluation, one segment of a stream, and ten thousand streams in flight.

    python benchmarks/rules_speed.py [--streams N]

Times are microseconds on one core; of one evaluation, of its processor. It is measured beside the CEL packages that are
installed (they stand in the extra `peers`): the same condition, compiled once, the facts ready in the form that each
package takes. The table is simulated on a virtual clock: streams of 50 tokens/s, a segment every 250 ms each; one in
twenty is slower than its reader and stalls for seconds at a time.
`cores` is the time spent in the engine over the time simulated.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from statistics import median
from typing import TYPE_CHECKING, Any

from otel_llm.formats.records import DEFAULT_TENANT, StreamKey
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.ruleset import Rule, RuleSet
from otel_llm.rules.files.shipped import shipped_rules_dir
from otel_llm.rules.language.condition import condition
from otel_llm.slo.classes import SloClass
from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

T0_NS = 1_790_000_000_000_000_000
MS = 1_000_000
WHEN = 'slo_class == "chat" && tokens_read > 0 && runway_seconds < 0.2 && gap_seconds > 0.5'


@dataclass(slots=True)
class View:
    """A stream as the engine is shown it."""

    key: StreamKey
    stream: Stream
    offset_ns: int
    watermark_ns: int
    slo_class: str = "chat"
    model: str = "m"
    instance: str = "a"
    measured_at: str = "client"
    exact_resume: bool = True
    token_basis: str | None = None
    token_ratio_learned: bool | None = None
    last_byte_ns: int = 0
    counted_since_ns: int | None = None
    has_gap: bool = False
    ageless: bool = False


def evaluation() -> None:
    """Print what one evaluation costs here and in three packages, all in turn, in the order of each round."""
    program = condition(WHEN, "stream").program
    for words, runway_s in (("all four terms decide", 0.1), ("the third term decides", 3.0)):
        facts: dict[str, Any] = {"slo_class": "chat", "tokens_read": 9, "runway_seconds": runway_s, "gap_seconds": 0.7}
        values = [facts[name] for name in program.facts]
        contenders: dict[str, tuple[Callable[[], object], int]] = {
            "otel-llm": (partial(program.run, *values), 50_000),
            **{name: (run, 3_000 if "celpy" not in name else 100) for name, run in peers(facts).items()},
        }
        for name, (run, _) in contenders.items():
            if bool(run()) is not (runway_s < 0.2):
                raise SystemExit(f"{name} gives another value")
        spent: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(7):
            for name, (run, times) in contenders.items():
                spent[name].append(timed_us(run, times))
        ours = median(spent["otel-llm"])
        print(f"  {words}; median of 7 rounds")
        for name, rounds in spent.items():
            middle = median(rounds)
            print(f"  {name:48} {middle:9.3f} us {middle / ours:8.1f} x")


def timed_us(run: Callable[[], object], times: int) -> float:
    """Return the processor time of one call, in us: on a machine that does other things as well it does not grow."""
    start = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - start) / times * 1e6


def peers(facts: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return an evaluation by each package that is installed; everything that can be done before is done before."""
    found: dict[str, Callable[[], object]] = {}
    try:
        from cel_expr_python import cel as google

        kinds = {str: google.Type.STRING, int: google.Type.INT, float: google.Type.DOUBLE}
        environment = google.NewEnv(variables={name: kinds[type(value)] for name, value in facts.items()})
        compiled = environment.compile(WHEN)
        found[f"cel-expr-python {version('cel-expr-python')} (Google, C++)"] = lambda: compiled.eval(data=facts).value()
    except ImportError:
        print("cel-expr-python is not installed here")
    try:
        import cel as rust

        rust_program = rust.compile(WHEN)
        name = f"common-expression-language {version('common-expression-language')} (Rust)"
        found[name] = lambda: rust_program.execute(facts)
    except ImportError:
        print("common-expression-language is not installed here")
    try:
        import celpy
        from celpy import celtypes

        kinds_of = {str: celtypes.StringType, int: celtypes.IntType, float: celtypes.DoubleType}
        activation: dict[str, Any] = {name: kinds_of[type(value)](value) for name, value in facts.items()}
        for runner in (celpy.CompiledRunner, celpy.InterpretedRunner):
            made = celpy.Environment(runner_class=runner)
            runnable = made.program(made.compile(WHEN))
            name = f"cel-python {version('cel-python')} (celpy, {runner.__name__})"
            found[name] = partial(runnable.evaluate, activation)
    except ImportError:
        print("cel-python is not installed here")
    return found


def service(rules: RuleSet, streams: int, seconds: float) -> tuple[float, int, int]:
    """Return the seconds spent in the engine, looks at streams and decisions."""
    rng = random.Random(1)
    engine = RuleEngine(rules)
    views: dict[StreamKey, View] = {}
    slo = SloClass()
    order = []
    for number in range(streams):
        key = number.to_bytes(16, "big"), number.to_bytes(8, "big"), DEFAULT_TENANT, 0
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=10_000, help="streams in flight (default: 10000)")
    streams = parser.parse_args().streams
    gc.disable()
    print("One evaluation of a rule's condition")
    evaluation()
    shipped = load_rules([shipped_rules_dir()])
    one = RuleSet(shipped.rules[:1])
    eight = RuleSet(tuple(_named(rule, number) for number in range(4) for rule in shipped.rules[:2]))
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
