"""A pipeline that runs without listeners, with a journal in a folder and a fake clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from otel_llm.actions.sinks.console import Console
from otel_llm.actions.sinks.sinks import Sinks
from otel_llm.collector.decoding import PartSizes
from otel_llm.collector.export.egress import Egress
from otel_llm.collector.pipeline import Pipeline
from otel_llm.collector.service import build_pipeline
from otel_llm.collector.settings import Limits, Settings
from otel_llm.evaluate.timers import Timeouts
from otel_llm.journal.journal import FsyncPolicy, Journal
from otel_llm.live.user_metrics import UserMetrics
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.clock import FakeClock


@contextmanager
def flowing(
    folder: Path,
    limits: Limits | None = None,
    sizes: PartSizes | None = None,
    *,
    fsync: FsyncPolicy = "never",
    fsync_call: Callable[[int], None] | None = None,
    rules: RuleSet | None = None,
    clock: FakeClock | None = None,
) -> Iterator[Pipeline]:
    """Run a pipeline; `fsync_call` stands in for the system's."""
    clock, limits = clock or FakeClock(), limits or Limits()
    calls = {} if fsync_call is None else {"fsync_call": fsync_call}
    with Journal(folder, fsync=fsync, compress=False, **calls) as journal:  # type: ignore[arg-type]
        flow = build_pipeline(
            clock=clock,
            journal=journal,
            classes=load_slo(),
            rules=RuleEngine(RuleSet(()) if rules is None else rules),
            sinks=Sinks(clock, Console(lambda line: None), UserMetrics(), None),
            limits=limits,
            window_ns=10**10,
            timeouts=Timeouts(),
            egress=Egress(Settings(limits=limits), clock),
            sizes=sizes,
        )
        flow.start()
        try:
            yield flow
        finally:
            flow.stop()
