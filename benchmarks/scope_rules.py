"""What rules of scopes instance and class cost: the evaluator alone, in one process, on the benchmark's exports.

    python benchmarks/scope_rules.py [--streams 2000] [--seconds 60] [--repeats 3]

A fleet of healthy streams (8 tokens a segment) is encoded, decoded, and taken in by the evaluator on the virtual clock,
an export at a time: CPU ms for a second of the fleet, the least of the repeats. `none`: no rule at all; `one`: one rule
that asks for streams alone; `all`: seven rules that ask for all facts, of instances and of classes. `ticks`: of that
the looks at whole seconds, and the longest of them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collector_load.classes import write_classes
from collector_load.fleet import Slots, read_exports, write_exports
from collector_load.replies import healthy

from otel_llm.evaluate.evaluator import Evaluator
from otel_llm.evaluate.windowing import Windowing
from otel_llm.formats.otlp import export_request as otlp
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.slo_file import load_slo

if TYPE_CHECKING:
    from otel_llm.rules.decisions.decision_records import Decision

START_NS = 1_790_000_000_000_000_000
SEGMENT_TOKENS = 8
HEAD = "version: 1\ngroups:\n"
RULE = "  - {{rule: {name}, when: '{when}', actions: [{{alert: {{name: A}}}}]}}\n"
FAST = "requests_5m >= 20 && burn_rate_5m > 14.4 && burn_rate_1h > 14.4"
SLOW = "requests_30m >= 20 && burn_rate_30m > 6.0 && burn_rate_6h > 6.0"
ALL = {
    "class": (FAST, SLOW, "requests_6h >= 20 && burn_rate_6h > 1.0 && burn_rate_3d > 1.0", "smooth_goodput_5m < 1.0"),
    "instance": ("starving > 3 && starving_share > 0.3", "idle_p99_1m > 5.0", "aborted_share_5m > 0.1"),
}
SETS: Final[dict[str, dict[str, tuple[str, ...]]]] = {"none": {}, "one": {"class": ("streams > 1000000",)}, "all": ALL}


class CountingSink:
    """A sink that counts decisions and drops the rest."""

    def __init__(self) -> None:
        self.decisions = 0

    def charged(self, *_: Any) -> None: ...
    def streams_judged(self, *_: Any) -> None: ...
    def reply_stated(self, *_: Any) -> None: ...
    def foreign_judged(self, *_: Any) -> None: ...
    def decided(self, decisions: list[Decision]) -> None:
        self.decisions += len(decisions)


def rules_of(folder: Path, name: str) -> RuleSet:
    if not SETS[name]:
        return RuleSet(())
    text = HEAD
    for scope, conditions in SETS[name].items():
        text += f"- name: {scope}\n  scope: {scope}\n  rules:\n"
        text += "".join(RULE.format(name=f"{scope}{at}", when=when) for at, when in enumerate(conditions))
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return load_rules([path])


def measure(folder: Path, exports: list[tuple[int, bytes]], name: str) -> tuple[float, float, float, int]:
    """Return CPU seconds of it all and of the ticks, the longest tick (s), and decisions."""
    sink = CountingSink()
    classes, windowing = load_slo(folder / "slo.yaml"), Windowing(10 * 10**9, 5 * 10**9)
    evaluator = Evaluator(classes, RuleEngine(rules_of(folder, name)), windowing, sink)
    ticks: list[float] = []
    tick = evaluator.groups.tick

    def timed(now_ns: int) -> list[Decision]:
        began = time.process_time()
        found = tick(now_ns)
        ticks.append(time.process_time() - began)
        return found

    evaluator.groups.tick = timed  # type: ignore[method-assign]
    spent = 0.0
    for due_ns, raw in exports:
        batch = otlp.read(raw)
        batch.received(due_ns)
        began = time.process_time()
        evaluator.apply(batch, due_ns)
        spent += time.process_time() - began
    return spent, sum(ticks), max(ticks, default=0.0), sink.decisions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_classes(folder / "slo.yaml", SEGMENT_TOKENS)
        mix = [Slots(chosen.streams, partial(healthy, segment_tokens=SEGMENT_TOKENS), 16.0, 4.0)]
        sent = write_exports(folder / "exports", mix, START_NS, chosen.seconds)
        exports = [(due_ns, raw) for due_ns, _, raw in read_exports(folder / "exports")]
        print(f"{chosen.streams} streams, {chosen.seconds} s: {len(exports)} exports, {sent.segments} segments")
        print(f"{'rules':<7}{'CPU ms/s':>10}{'us/segment':>12}{'ticks ms/s':>12}{'longest ms':>12}{'decisions':>11}")
        runs = [{which: measure(folder, exports, which) for which in SETS} for _ in range(chosen.repeats)]
        for which in SETS:
            spent, ticks, longest, decisions = min(run[which] for run in runs)
            per_s, each = spent / chosen.seconds * 1e3, spent / sent.segments * 1e6
            ticks_ms = ticks / chosen.seconds * 1e3
            print(f"{which:<7}{per_s:>10.2f}{each:>12.2f}{ticks_ms:>12.2f}{longest * 1e3:>12.2f}{decisions:>11}")


if __name__ == "__main__":
    main()
