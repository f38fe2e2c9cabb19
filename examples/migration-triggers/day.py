"""Compare migration triggers over a day of requests: run by hand, some minutes; writes `day.json` and README's table.

    python examples/migration-triggers/day.py TRACE.csv

TRACE.csv is Azure's conversation trace of 2023 (see `arrivals.py`). Every stream of the day is served by the model; a
sample, drawn before anything is known of its streams, is watched by the rule engine token by token. The same every
time.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from arrivals import DAY_NS, capacity, day, read_trace
from pacing import Engine, Request, S, serve
from watching import FELT_NS, Wait, triggers, waits, watch

from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.shipped import shipped_rules_dir
from otel_llm.rules.files.slo_file import load_slo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.rules.files.ruleset import RuleSet

HERE: Final = Path(__file__).parent
SEED: Final = 6
SAMPLE: Final = 5000
LOADS: Final = (0.6, 0.8, 1.0)
"""The busiest minute's arrivals as a share of what the engine can serve: room to spare, busy, too much."""
ENGINES: Final[tuple[Engine, ...]] = ("mixed", "decode")
SHORT: Final[dict[str, Any]] = {"load": 0.8, "begin_ns": 13 * 3600 * S, "end_ns": 13 * 3600 * S + 600 * S, "sample": 60}
"""What the suite runs again."""
NAMES: Final = ("Tbt50ms", "Tbt200ms", "Tbt1s", "Idle", "Runway", "ReaderStarving", "ReaderAboutToStarve")
BEGIN, END = "<!-- from day.json -->", "<!-- end -->"


def compared_rules() -> RuleSet:
    """Load the rules that are compared, and those that ship for readers of chat."""
    return load_rules([HERE / "rules.yaml", shipped_rules_dir() / "chat.yaml"])


def study(
    trace: Sequence[Request],
    engine: Engine,
    load: float,
    *,
    sample: int = SAMPLE,
    begin_ns: int = 0,
    end_ns: int = DAY_NS,
) -> dict[str, Any]:
    """Serve the requests of a day (or a part) at a load, watch a sample, and return what each rule did."""
    slo = load_slo().get("chat")
    requests = day(trace, load * capacity(trace, engine), SEED, begin_ns, end_ns)
    served = serve(requests, engine)
    rules = compared_rules()
    found: list[tuple[dict[str, int], list[Wait]]] = []
    for number in sorted(random.Random(SEED).sample(range(len(requests)), min(sample, len(requests)))):
        tokens_ns = served.tokens_ns(number)
        fired = triggers(watch(rules, slo, requests[number].at_ns, tokens_ns, number + 1))
        felt = [wait for wait in waits(tokens_ns, slo.pace_ns) if wait.waited_ns >= FELT_NS]
        found.append((fired, felt))
    return {
        "engine": engine,
        "load": load,
        "streams": len(requests),
        "watched": len(found),
        "waited": sum(bool(felt) for _, felt in found),
        "rules": {name: judge([(fired.get(name), felt) for fired, felt in found]) for name in NAMES},
    }


def judge(found: Sequence[tuple[int | None, Sequence[Wait]]]) -> dict[str, Any]:
    """Count what one rule's first trigger on each stream was worth; leads in seconds.

    `followed`: triggers during a felt wait, or before one. `before`, `during`, `none`: where the trigger came relative
    to the stream's first felt wait; `none` is no trigger by its end. `lead_s`: of those before, how long before.
    """
    fired = [(at_ns, felt) for at_ns, felt in found if at_ns is not None]
    firsts = [(at_ns, felt[0]) for at_ns, felt in found if felt]
    leads_ns = sorted(wait.start_ns - at_ns for at_ns, wait in firsts if at_ns is not None and at_ns < wait.start_ns)
    none = sum(at_ns is None or at_ns >= wait.end_ns for at_ns, wait in firsts)
    return {
        "triggers": len(fired),
        "followed": sum(any(wait.end_ns > at_ns for wait in felt) for at_ns, felt in fired),
        "before": len(leads_ns),
        "during": len(firsts) - len(leads_ns) - none,
        "none": none,
        "lead_s": [round(rank(leads_ns, share) / S, 3) for share in (10, 50, 90)] if leads_ns else None,
    }


def rank(values: Sequence[int], percent: int) -> int:
    """Return the nearest-rank percentile of sorted values."""
    return values[-(-len(values) * percent // 100) - 1]


def tables(runs: Sequence[dict[str, Any]]) -> str:
    """Write the runs as Markdown."""
    words = {"mixed": "prompts and decode on one engine", "decode": "decode alone (disaggregated)"}
    parts = []
    for run in runs:
        waited = f"{run['waited']:,} of {run['watched']:,} readers waited; {run['streams']:,} streams in the day"
        rows = [f"**{words[run['engine']]}, load {run['load']:.0%}**: {waited}", ""]
        rows += [
            "| rule | triggers | followed | first wait: trigger before | during | none | lead p10, p50, p90 |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for name in NAMES:
            one = run["rules"][name]
            followed = f"{one['followed'] / one['triggers']:.1%}" if one["triggers"] else "no trigger"
            lead = ", ".join(f"{value:.2f} s" for value in one["lead_s"]) if one["lead_s"] else "none"
            counts = " | ".join(f"{one[key]:,}" for key in ("before", "during", "none"))
            rows.append(f"| `{name}` | {one['triggers']:,} | {followed} | {counts} | {lead} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def write_readme(runs: Sequence[dict[str, Any]]) -> None:
    """Put the tables into the README."""
    file = HERE / "README.md"
    before, _, rest = file.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    file.write_text(f"{before}{BEGIN}\n{tables(runs)}\n{END}{after}", encoding="utf-8")


def main(trace_file: Path) -> None:
    """Run everything and write it."""
    trace = read_trace(trace_file)
    runs = []
    for engine in ENGINES:
        for load in LOADS:
            runs.append(study(trace, engine, load))
            print(json.dumps(runs[-1]), flush=True)
    short = [study(trace, engine, **SHORT) for engine in ENGINES]
    text = json.dumps({"seed": SEED, "runs": runs, "short": short}, indent=1)
    (HERE / "day.json").write_text(text + "\n", encoding="utf-8")
    write_readme(runs)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: day.py TRACE.csv (Azure's conversation trace of 2023: see arrivals.py)")
    main(Path(sys.argv[1]))
