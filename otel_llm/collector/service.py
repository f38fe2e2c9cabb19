"""The service: listeners and flow, started and stopped in an order in which no accepted export is lost."""

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
from otel_llm.collector.decoding import PartSizes
from otel_llm.collector.export.egress import Egress, refuse_own_listeners
from otel_llm.collector.keeping import journal_bytes
from otel_llm.collector.pipeline import Pipeline
from otel_llm.collector.receive.listeners import Addresses, Listeners
from otel_llm.collector.restart import Progress, Windows, replay, written_windows
from otel_llm.collector.telemetry.self_metrics import DecisionLatency
from otel_llm.collector.web.views import Web, families
from otel_llm.config.errors import StartError
from otel_llm.config.otlp_target import user_agent
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
from otel_llm.shared.reloading import Reloader
from otel_llm.slo.metrics import WINDOW_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_llm.actions.sinks.console import Console
    from otel_llm.collector.settings import Limits, Settings
    from otel_llm.evaluate.timers import Timeouts
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.slo.classes import SloClasses

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stopped:
    """The end of the service."""

    line: str
    """For people."""
    clean: bool
    """Whether every accepted export was evaluated; the others are in the journal."""


@dataclass(slots=True)
class Service:
    """One collector; call `prepare`, `serve` and `stop` once each, in this order."""

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
    """Reads the class and rule files again; raises ConfigError."""
    clock: Clock = field(default_factory=MonotonicClock)
    warnings: list[str] = field(default_factory=list)
    drained: bool = False
    """Whether `stop` has evaluated everything that was accepted, and closed all."""
    _pipeline: Pipeline | None = None
    _listeners: Listeners | None = None
    _reloader: Reloader | None = None
    resumed: str | None = None
    """One line on what the restart has read from the journal; None if it has read nothing."""
    _checkpoint: Checkpoint | None = None
    _new_windows: Windows | None = None
    _alerts: Alerts | None = None
    _dispatcher: ActionDispatcher | None = None
    _windows: TextIO | None = None
    _decisions: DecisionFiles | None = None
    _progress: Progress = field(default_factory=Progress)
    _started: bool = False
    _ready: bool = False
    _stopping: bool = False

    @property
    def pipeline(self) -> Pipeline:
        """Return the flow of exports, which `prepare` makes."""
        assert self._pipeline is not None  # noqa: S101
        return self._pipeline

    @property
    def listeners(self) -> Listeners:
        """Return the listeners, which `prepare` makes."""
        assert self._listeners is not None  # noqa: S101
        return self._listeners

    def prepare(self) -> None:
        """Open the journal, resume the state of the last run from it, and bind the ports.

        The web port serves from here on; the receivers do not yet.

        Raises:
            StartError: the service cannot start; nothing is left running.
            ConfigError: a file of the settings cannot be used; the same.
        """
        settings = self.settings.journal
        journal = Journal(
            self.journal_folder,
            max_bytes=settings.file_bytes,
            max_age_s=settings.file_s,
            fsync=settings.fsync,
            fsync_interval_s=settings.fsync_interval_s,
            compress=settings.compress,
            retain_bytes=journal_bytes(settings, self.journal_folder),
            retain_s=settings.retain_s,
        ).open()
        try:
            pipeline = self._pipeline = self._build_flow(journal)
            listeners = self._listeners = Listeners(
                self.at,
                self.settings,
                accept=pipeline.accept,
                attach=pipeline.attach,
                clock=self.clock,
                web=Web(pipeline),
                healthy=lambda: pipeline.why_unhealthy() if self._started else None,
                ready=self._why_not_ready,
            )
            reloader = self._reloader = Reloader(self._reloadables(pipeline, listeners))
            pipeline.more_counts = lambda: {
                "reloads": reloader.reloads,
                "reload_errors": reloader.errors,
                **listeners.counts(),
                **({} if self._dispatcher is None else self._dispatcher.counts()),
                **({} if self._alerts is None else self._alerts.counts()),
            }
            listeners.open_web()
            self._resume(pipeline, journal)
            listeners.bind()
            refuse_own_listeners(self.settings, [listeners.grpc.address, listeners.http.address])
            self.warnings += listeners.warnings()
        except BaseException:
            self._close()
            journal.close()
            raise

    def serve(self) -> None:
        """Start to evaluate, then serve on all ports; return when `/readyz` answers 200."""
        pipeline, listeners = self._pipeline, self._listeners
        assert pipeline is not None  # noqa: S101
        assert listeners is not None  # noqa: S101
        try:
            pipeline.sinks.live_since_ns = self.clock.now_ns()
            pipeline.start()
            self._started = True
            if self._alerts is not None:
                self._alerts.start()
            if self._dispatcher is not None:
                self._dispatcher.start()
            self._checkpoint = Checkpoint(pipeline.journal, lambda: pipeline.call(pipeline.evaluator.resume_point))
            self._checkpoint.start()
            _tune_garbage_collector()
            listeners.open()
            pipeline.egress.start(lambda: families(pipeline))
            self._ready = True
        except BaseException:
            self._close()
            raise

    def _resume(self, pipeline: Pipeline, journal: Journal) -> None:
        """Resume the state of the last run from the journal."""
        _tune_garbage_collector()
        records = replay(pipeline, journal, windows=self._new_windows, progress=self._progress)
        if records:
            flying = len(pipeline.evaluator.live)
            self.resumed = f"resumed from the journal: {records} exports read again, {flying} streams in flight"

    def _build_flow(self, journal: Journal) -> Pipeline:
        try:
            path, retention = self.decisions_path, self.settings.decisions
            self._windows = _append_to(self.windows_path, self.settings.files.mode)
            if path is not None:
                refuse_other_lines(path, FIRST_KEY, "decisions")
            decided, _ = read_decided([] if path is None else read_back(path, READ_BACK_BYTES))
            written = set() if self.windows_path is None else written_windows(self.windows_path)
            self._new_windows = Windows(self._write_window, written)
            if path is not None:
                self._decisions = DecisionFiles(
                    path, retention.file_bytes, retention.retain_bytes, self.settings.files.mode
                )
        except OSError as problem:
            raise StartError(f"{problem.filename}: {problem.strerror}: choose another file") from problem
        metrics = self.settings.metrics
        egress = Egress(self.settings, self.clock)
        source = f"/otel-llm/collector/{egress.instance_id}"
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
            on_window=self._new_windows.take,
            egress=egress,
        )
        sinks.groups_in_flight = pipeline.evaluator.table.groups_in_flight
        sinks.context, sinks.later = ActionContext.of_evaluator(pipeline.evaluator), pipeline.call_soon
        if executors(self.settings):
            actions = self.settings.actions
            found = Executors(self.settings, source, user_agent(), alerts.notify)
            sinks.dispatcher = self._dispatcher = ActionDispatcher(
                self.clock.now_ns, found.find, actions.kill_switch, actions.wedge_timeout_s
            )
        return pipeline

    def _why_not_ready(self) -> str | None:
        assert self._pipeline is not None  # noqa: S101
        if self._stopping:
            return "stopping"
        if not self._ready:
            return self._progress.line or "starting"
        return self._pipeline.why_not_ready()

    def _write_window(self, row: dict[str, object]) -> None:
        assert self._pipeline is not None  # noqa: S101
        if self._pipeline.egress.windows is not None:
            self._pipeline.egress.windows.offer(row)
        if self._windows is None:
            return
        try:
            self._windows.write(json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n")
            self._windows.flush()
        except OSError as problem:
            self._pipeline.sinks.not_written("windows", problem)

    def _reloadables(self, pipeline: Pipeline, listeners: Listeners) -> list[tuple[str, Callable[[], str]]]:
        def classes_and_rules() -> str:
            classes, rules = self.load()
            pipeline.reload(classes, rules)
            self.classes, self.rules = classes, rules
            return self.judging()

        kinds: list[tuple[str, Callable[[], str]]] = [("classes and rules", classes_and_rules)]
        if listeners.tokens is not None:
            kinds.append(("tokens", lambda: str(listeners.reload_tokens())))
        if listeners.certificates is not None:
            kinds.append(("certificates", lambda: "changed" if listeners.reload_certificates() else "unchanged"))
        return kinds

    def reload(self) -> tuple[str | None, list[str]]:
        """Reload classes, rules, tokens and certificates.

        Returns:
            A line on what was reloaded, None if nothing was; and a line on each failure.
        """
        assert self._reloader is not None  # noqa: S101
        return self._reloader.run()

    def listening(self) -> str:
        """Return the line of addresses for the operator."""
        assert self._listeners is not None  # noqa: S101
        return self._listeners.listening()

    def judging(self) -> str:
        """Return the classes and the number of rules, as words."""
        shadow = " (in shadow)" if self.rules.shadow else ""
        return f"classes: {', '.join(self.classes.names)}; rules: {len(self.rules.rules)}{shadow}"

    def summary(self) -> str:
        """Return one line on classes, rules and the journal."""
        return f"{self.judging()}; journal: {self.journal_folder}"

    def stop(self) -> Stopped:
        """Close the receivers, evaluate the accepted exports, close the files; within `drain_s` seconds."""
        assert self._pipeline is not None  # noqa: S101
        drain_s = self.settings.limits.drain_s
        draining = threading.Thread(target=self._drain, name="otel-llm-drain", daemon=True)
        draining.start()
        draining.join(drain_s)
        counts = self._pipeline.counts()  # not by `call`: the evaluator's thread has ended, or is too busy
        done = f"{counts.get('exports', 0)} exports, {counts.get('judged', 0)} streams judged"
        if not self.drained:
            left = f"{counts['queue']} exports were not evaluated (they are in the journal)"
            return Stopped(f"stopped after {drain_s:g} s: {done}; {left}", clean=False)
        rest = f"{counts['in_flight']} still in flight (in the journal), {counts['decisions']} decisions"
        return Stopped(f"stopped: {done}, {rest}", clean=True)

    def _drain(self) -> None:
        assert self._pipeline is not None  # noqa: S101
        assert self._listeners is not None  # noqa: S101
        self._stopping = True  # `/readyz` says so: load balancers choose another collector
        self._listeners.close_to_exports(self.settings.limits.drain_s / 2)
        if self._checkpoint is not None:
            self._checkpoint.stop()
        # Both before the pipeline: its thread collects the last metrics and records the outcome of actions in progress.
        self._pipeline.egress.stop_metrics(self.settings.limits.drain_s / 4)
        if self._dispatcher is not None:
            self._dispatcher.stop(self.settings.limits.drain_s / 4)
        self._pipeline.stop()
        self._pipeline.egress.stop(self.settings.limits.drain_s / 8)
        if self._alerts is not None:
            self._alerts.stop(self.settings.limits.drain_s / 8)
        self._close_files()
        self._listeners.close()
        self.drained = True

    def _close(self) -> None:
        if self._listeners is not None:
            self._listeners.close()
        if self._checkpoint is not None:
            self._checkpoint.stop()
        if self._dispatcher is not None:
            self._dispatcher.stop(0.0)
        if self._pipeline is not None:
            self._pipeline.stop()
        self._close_files()

    def _close_files(self) -> None:
        for file in (self._windows, self._decisions):
            if file is not None:
                file.close()


def _tune_garbage_collector() -> None:
    """Make full collections of cyclic garbage rare.

    The streams in flight are many objects, none of them in a cycle. With the defaults, traversing them takes a fifth of
    the CPU time, and one traversal of a hundred thousand takes longer than a reader should wait.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 2_500, 100)


def _append_to(path: Path | None, mode: int) -> TextIO | None:
    if path is None:
        return None
    refuse_other_lines(path, WINDOW_COLUMNS[0].name, "windows")
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
    egress: Egress,
    on_window: Callable[[dict[str, object]], None] | None = None,
    sizes: PartSizes | None = None,
) -> Pipeline:
    """Build a pipeline from its parts; `window_ns`: the length of windows, ns."""
    windowing = Windowing(window_ns=window_ns, lateness_ns=timeouts.lateness_ns, on_window=on_window)
    evaluator = Evaluator(classes=classes, rules=rules, windowing=windowing, sink=sinks, timeouts=timeouts)
    return Pipeline(clock, journal, evaluator, sinks, limits, egress, sizes=PartSizes() if sizes is None else sizes)
