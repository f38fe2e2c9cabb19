"""The service put together: doors and flow, started in an order in which nothing is lost, stopped in the other."""

from __future__ import annotations

import gc
import io
import json
import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from otel_llm.actions.alerts.alerts import Alerts
from otel_llm.actions.execute.dispatcher import ActionDispatcher
from otel_llm.actions.execute.executors import Executors, executors
from otel_llm.actions.sinks.action_context import ActionContext
from otel_llm.actions.sinks.sinks import Sinks
from otel_llm.collector.checkpoints import Checkpoint
from otel_llm.collector.export.egress import Outgoing, refuse_own_doors
from otel_llm.collector.pipeline import Pipeline
from otel_llm.collector.receive.listeners import Addresses, Doors
from otel_llm.collector.restart import Progress, Windows, replay, written_windows
from otel_llm.collector.telemetry.self_metrics import DecisionLatency
from otel_llm.collector.web.views import Web, families
from otel_llm.evaluate.evaluator import Evaluator
from otel_llm.evaluate.windowing import Windowing
from otel_llm.journal.journal import Journal
from otel_llm.live.user_metrics import UserMetrics
from otel_llm.rules.decisions.decision_records import FIRST_KEY, read_decided
from otel_llm.rules.decisions.files import READ_BACK_BYTES, DecisionFiles, read_back
from otel_llm.rules.decisions.line_files import lock_file, refuse_other_lines
from otel_llm.rules.decisions.output_file import open_output
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.shared.clock import Clock, MonotonicClock
from otel_llm.shared.errors import StartError
from otel_llm.shared.otlp_target import user_agent
from otel_llm.shared.reloading import Reloading
from otel_llm.slo.columns import WINDOW_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_llm.actions.sinks.console import Console
    from otel_llm.collector.config.settings import Limits, Settings
    from otel_llm.evaluate.evaluator import Timeouts
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.slo.classes import SloClasses

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stopped:
    """How the service came to its end."""

    line: str
    """For people."""
    clean: bool
    """Whether everything accepted was evaluated; what was not is in the journal."""


@dataclass(slots=True)
class Service:
    """One collector; `prepare`, `serve`, then `stop`, each once."""

    classes: SloClasses
    rules: RuleSet
    settings: Settings
    journal_folder: Path
    decisions_path: Path | None
    windows_path: Path | None
    at: Addresses
    window_ns: int
    timeouts: Timeouts
    console: Console
    load: Callable[[], tuple[SloClasses, RuleSet]]
    """Reads the class and rule files anew; raises ConfigError."""
    clock: Clock = field(default_factory=MonotonicClock)
    warnings: list[str] = field(default_factory=list)
    _pipeline: Pipeline | None = None
    _doors: Doors | None = None
    _reloading: Reloading | None = None
    resumed: str | None = None
    """One line on what was read again, if anything was."""
    _checkpoint: Checkpoint | None = None
    _seen_windows: Windows | None = None
    _alerts: Alerts | None = None
    _doing: ActionDispatcher | None = None
    _windows: TextIO | None = None
    _decisions: DecisionFiles | None = None
    _restart: Progress = field(default_factory=Progress)
    _serving: bool = False
    _stopping: bool = False
    _drained: bool = False

    def prepare(self) -> None:
        """Take the journal and the ports, go on where the run before stopped; nobody is let in yet.

        Raises StartError or ConfigError, and then nothing is left running.
        """
        settings = self.settings.journal
        journal = Journal(
            self.journal_folder,
            max_bytes=settings.file_bytes,
            max_age_s=settings.file_s,
            fsync=settings.fsync,
            fsync_interval_s=settings.fsync_interval_s,
            compress=settings.compress,
            retain_bytes=settings.retain_bytes,
            retain_s=settings.retain_s,
        ).open()
        try:
            pipeline = self._pipeline = self._flow(journal)
            doors = self._doors = Doors(
                self.at,
                self.settings,
                accept=pipeline.accept,
                attach=pipeline.attach,
                clock=self.clock,
                web=Web(pipeline),
                healthy=lambda: pipeline.unwell() if self._serving else None,
                ready=self._unready,
            )
            reloading = self._reloading = Reloading(self._kinds(pipeline, doors))
            pipeline.more_counts = lambda: {
                "reloads": reloading.reloads,
                "reload_errors": reloading.errors,
                **doors.refusals(),
                **({} if self._doing is None else self._doing.counts()),
                **({} if self._alerts is None else self._alerts.counts()),
            }
            doors.open_web()
            self._bring_back(pipeline, journal)
            doors.bind()
            refuse_own_doors(self.settings, [doors.grpc.address, doors.http.address])
            self.warnings += doors.warnings()
        except BaseException:
            self._close()
            journal.close()
            raise

    def serve(self) -> None:
        """Evaluate, and open the doors; what is found is said from here on."""
        pipeline, doors = self._pipeline, self._doors
        assert pipeline is not None  # noqa: S101
        assert doors is not None  # noqa: S101
        try:
            pipeline.sinks.live_since_ns = self.clock.now_ns()
            pipeline.start()
            self._serving = True
            if self._alerts is not None:
                self._alerts.start()
            if self._doing is not None:
                self._doing.start()
            self._checkpoint = Checkpoint(pipeline.journal, lambda: pipeline.ask(pipeline.evaluator.resume_point))
            self._checkpoint.start()
            _rest_the_cyclic_collector()
            doors.open()
            pipeline.outgoing.start(lambda: families(pipeline))
        except BaseException:
            self._close()
            raise

    def _bring_back(self, pipeline: Pipeline, journal: Journal) -> None:
        """Go on where the run before stopped."""
        _rest_the_cyclic_collector()
        records = replay(pipeline, journal, windows=self._seen_windows, progress=self._restart)
        if records:
            flying = len(pipeline.evaluator.live)
            self.resumed = f"resumed from the journal: {records} exports read again, {flying} streams in flight"

    def _flow(self, journal: Journal) -> Pipeline:
        try:
            path, kept = self.decisions_path, self.settings.decisions
            self._windows = _append_to(self.windows_path, self.settings.files.mode)
            if path is not None:
                refuse_other_lines(path, FIRST_KEY, "decisions")
            decided, _ = read_decided([] if path is None else read_back(path, READ_BACK_BYTES))
            written = set() if self.windows_path is None else written_windows(self.windows_path)
            self._seen_windows = Windows(self._write_window, written)
            if path is not None:
                self._decisions = DecisionFiles(path, kept.file_bytes, kept.retain_bytes, self.settings.files.mode)
        except OSError as problem:
            raise StartError(f"{problem.filename}: {problem.strerror}: choose another file") from problem
        metrics = self.settings.metrics
        outgoing = Outgoing(self.settings, self.clock)
        source = f"/otel-llm/collector/{outgoing.instance_id}"
        alerts = self._alerts = Alerts(self.settings, self.journal_folder, self.clock, source)
        sinks = Sinks(
            clock=self.clock,
            console=self.console,
            metrics=UserMetrics(
                by_instance=metrics.instance_label,
                models=None if metrics.models is None else frozenset(metrics.models),
                instances=None if metrics.instances is None else frozenset(metrics.instances),
                max_bytes=self.settings.limits.metrics_bytes,
            ),
            decisions=self._decisions,
            latency=DecisionLatency(),
            alerts=alerts,
        )
        pipeline = build_pipeline(
            clock=self.clock,
            journal=journal,
            classes=self.classes,
            rules=RuleEngine(self.rules, decided, alerts.take),
            sinks=sinks,
            limits=self.settings.limits,
            window_ns=self.window_ns,
            timeouts=self.timeouts,
            on_window=self._seen_windows.take,
            outgoing=outgoing,
        )
        sinks.context, sinks.later = ActionContext.of_evaluator(pipeline.evaluator), pipeline.later
        if executors(self.settings):
            actions = self.settings.actions
            found = Executors(self.settings, source, user_agent(), alerts.notify)
            sinks.dispatcher = self._doing = ActionDispatcher(
                self.clock.now_ns, found.find, actions.kill_switch, actions.wedge_timeout_s
            )
        return pipeline

    def _unready(self) -> str | None:
        assert self._pipeline is not None  # noqa: S101
        if self._stopping:
            return "stopping"
        if not self._serving:
            return self._restart.line or "starting"
        return self._pipeline.unready()

    def _write_window(self, row: dict[str, object]) -> None:
        assert self._pipeline is not None  # noqa: S101
        if self._pipeline.outgoing.windows is not None:
            self._pipeline.outgoing.windows.offer(row)
        if self._windows is None:
            return
        try:
            self._windows.write(json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n")
            self._windows.flush()
        except OSError as problem:
            self._pipeline.sinks.not_written("windows", problem)

    def _kinds(self, pipeline: Pipeline, doors: Doors) -> list[tuple[str, Callable[[], str]]]:
        def classes_and_rules() -> str:
            classes, rules = self.load()
            pipeline.reload(classes, rules)
            self.classes, self.rules = classes, rules
            return self.judging()

        kinds: list[tuple[str, Callable[[], str]]] = [("classes and rules", classes_and_rules)]
        if doors.tokens is not None:
            kinds.append(("tokens", lambda: str(doors.reload_tokens())))
        if doors.certificates is not None:
            kinds.append(("certificates", lambda: "changed" if doors.reload_certificates() else "unchanged"))
        return kinds

    def reload(self) -> tuple[str | None, list[str]]:
        """Reload classes, rules, tokens and certificates; return a line on what was, and one on each that was not."""
        assert self._reloading is not None  # noqa: S101
        return self._reloading.run()

    def listening(self) -> str:
        """Return one line on what is listening where."""
        assert self._doors is not None  # noqa: S101
        return self._doors.listening()

    def judging(self) -> str:
        """Return words on what streams are judged by."""
        shadow = " (in shadow)" if self.rules.shadow else ""
        return f"classes: {', '.join(self.classes.names)}; rules: {len(self.rules.rules)}{shadow}"

    def following(self) -> str:
        """Return one line on what is judged by what and written where."""
        return f"{self.judging()}; journal: {self.journal_folder}"

    def stop(self) -> Stopped:
        """Close the doors, evaluate what was accepted, close the files: at most `drain_s` seconds from now."""
        assert self._pipeline is not None  # noqa: S101
        drain_s = self.settings.limits.drain_s
        draining = threading.Thread(target=self._drain, name="otel-llm-drain", daemon=True)
        draining.start()
        draining.join(drain_s)
        counts = self._pipeline.counts()
        done = f"{counts.get('exports', 0)} exports, {counts.get('judged', 0)} streams judged"
        if not self._drained:
            left = f"{counts['queue']} exports were not evaluated (they are in the journal)"
            return Stopped(f"stopped after {drain_s:g} s: {done}; {left}", clean=False)
        rest = f"{counts['in_flight']} still in flight (in the journal), {counts['decisions']} decisions"
        return Stopped(f"stopped: {done}, {rest}", clean=True)

    def _drain(self) -> None:
        assert self._pipeline is not None  # noqa: S101
        assert self._doors is not None  # noqa: S101
        self._stopping = True  # whoever balances load looks elsewhere from now on
        self._doors.close_to_exports(self.settings.limits.drain_s / 2)
        if self._checkpoint is not None:
            self._checkpoint.stop()
        self._pipeline.outgoing.stop_metrics(self.settings.limits.drain_s / 4)
        if self._doing is not None:  # what was begun is settled while there is still somebody who records it
            self._doing.stop(self.settings.limits.drain_s / 4)
        self._pipeline.stop()
        self._pipeline.outgoing.stop(self.settings.limits.drain_s / 8)
        if self._alerts is not None:
            self._alerts.stop(self.settings.limits.drain_s / 8)
        self._close_files()
        self._doors.close()
        self._drained = True

    def _close(self) -> None:
        if self._doors is not None:
            self._doors.close()
        if self._checkpoint is not None:
            self._checkpoint.stop()
        if self._doing is not None:
            self._doing.stop(0.0)
        if self._pipeline is not None:
            self._pipeline.stop()
        self._close_files()

    def _close_files(self) -> None:
        for file in (self._windows, self._decisions):
            if file is not None:
                file.close()


def _rest_the_cyclic_collector() -> None:
    """Look for cycles of garbage among few objects at a time, and rarely among all.

    The streams in flight are many objects, none of them in a cycle. By default all are looked at again and again, a
    fifth of the time here, and a look at a hundred thousand takes as long as a reader may wait.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 2_500, 100)


def _append_to(path: Path | None, mode: int) -> TextIO | None:
    if path is None:
        return None
    refuse_other_lines(path, WINDOW_COLUMNS[0], "windows")
    path.parent.mkdir(parents=True, exist_ok=True)
    opened = open_output(path, append=True, mode=mode)
    try:
        if opened.regular:
            lock_file(opened.file.fileno(), path)
    except OSError:
        opened.file.close()
        raise
    return io.TextIOWrapper(io.BufferedWriter(opened.file), encoding="utf-8")


def build_pipeline(
    *,
    clock: Clock,
    journal: Journal,
    classes: SloClasses,
    rules: RuleEngine,
    sinks: Sinks,
    limits: Limits,
    window_ns: int,
    timeouts: Timeouts,
    outgoing: Outgoing,
    on_window: Callable[[dict[str, object]], None] | None = None,
) -> Pipeline:
    """Put the flow together; lengths of time in ns."""
    windowing = Windowing(window_ns=window_ns, lateness_ns=timeouts.lateness_ns, on_window=on_window)
    evaluator = Evaluator(classes=classes, rules=rules, windowing=windowing, sink=sinks, timeouts=timeouts)
    return Pipeline(clock, journal, evaluator, sinks, limits, outgoing)
