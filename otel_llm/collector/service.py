"""The service put together: doors and flow, started in an order in which nothing is lost, stopped in the other."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from otel_llm.collector.clock import Clock, MonotonicClock
from otel_llm.collector.errors import StartError
from otel_llm.collector.grpc_server import GrpcReceiver
from otel_llm.collector.http_server import HttpServer, web_app
from otel_llm.collector.journal import Journal
from otel_llm.collector.otlp_http import otlp_app
from otel_llm.collector.pipeline import Pipeline, build, window_line
from otel_llm.collector.web import Web
from otel_llm.rules.decisions import DecisionLog
from otel_llm.rules.engine import RuleEngine

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.collector.address import Address
    from otel_llm.collector.config import Settings
    from otel_llm.collector.console import Console
    from otel_llm.collector.evaluator import Patience
    from otel_llm.rules.ruleset import RuleSet
    from otel_llm.slo.classes import SloClasses

STOP_GRACE_S = 5.0
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Service:
    """One collector; `start`, then `stop` once."""

    classes: SloClasses
    rules: RuleSet
    settings: Settings
    journal_folder: Path
    decisions_path: Path | None
    windows_path: Path | None
    grpc: Address
    http: Address
    web: Address
    window_ns: int
    patience: Patience
    console: Console
    clock: Clock = field(default_factory=MonotonicClock)
    warnings: list[str] = field(default_factory=list)
    _pipeline: Pipeline | None = None
    _doors: list[GrpcReceiver | HttpServer] = field(default_factory=list)
    _windows: TextIO | None = None
    _decisions: TextIO | None = None

    def start(self) -> None:
        """Take the journal, open the doors; raises StartError, and then nothing is left running."""
        journal = Journal(
            self.journal_folder,
            max_bytes=self.settings.journal_file_bytes,
            max_age_s=self.settings.journal_file_s,
        ).open()
        try:
            pipeline = self._pipeline = self._flow(journal)
            pipeline.start()
            web = Web(pipeline)
            limit = self.settings.message_bytes
            page = web_app(
                metrics=web.metrics,
                streams=web.streams,
                requests=web.requests,
                page=web.page,
                healthy=pipeline.unwell,
                ready=pipeline.unready,
            )
            self._doors = [
                HttpServer(page, self.web, option="--web"),
                HttpServer(otlp_app(pipeline.accept, max_message_bytes=limit), self.http, option="--http"),
                GrpcReceiver(self.grpc, pipeline.accept, max_message_bytes=limit),
            ]
            for door in self._doors:  # all ports are taken before anybody is let in
                door.bind()
            for door in self._doors:
                door.start()
        except BaseException:
            self._close()
            journal.close()
            raise

    def _flow(self, journal: Journal) -> Pipeline:
        if self.rules.not_evaluated:
            names = ", ".join(rule.name for rule in self.rules.not_evaluated)
            self.warnings.append(
                f"rules of scope instance and class are checked, not evaluated in this version: {names}"
            )
        try:
            self._windows = _append_to(self.windows_path)
            self._decisions = _append_to(self.decisions_path)
        except OSError as problem:
            raise StartError(f"{problem.filename}: {problem.strerror}: choose another file") from problem
        pipeline = build(
            clock=self.clock,
            journal=journal,
            classes=self.classes,
            rules=RuleEngine(self.rules),
            console=self.console,
            decisions=None if self._decisions is None else DecisionLog(self._decisions),
            window_ns=self.window_ns,
            patience=self.patience,
            on_window=None if self._windows is None else self._write_window,
        )
        pipeline.outlets.metrics.by_instance = self.settings.instance_label
        pipeline.max_streams = self.settings.max_streams
        return pipeline

    def _write_window(self, row: dict[str, object]) -> None:
        assert self._windows is not None  # noqa: S101
        assert self._pipeline is not None  # noqa: S101
        try:
            self._windows.write(window_line(row) + "\n")
            self._windows.flush()
        except OSError as problem:
            if not self._pipeline.outlets.unwritten:
                log.error("otel-llm: windows cannot be written: %s", problem)  # noqa: TRY400  the message says it all
            self._pipeline.outlets.unwritten += 1

    def listening(self) -> str:
        """Return one line on what is listening where."""
        web, http, grpc = self._doors
        return f"listening: OTLP/gRPC {grpc.address}, OTLP/HTTP {http.address}, web http://{web.address}"

    def following(self) -> str:
        """Return one line on what is judged by what and written where."""
        shadow = " (in shadow)" if self.rules.shadow else ""
        return (
            f"classes: {', '.join(self.classes.names)}; rules: {len(self.rules.stream_rules)}{shadow}; "
            f"journal: {self.journal_folder}"
        )

    def stop(self) -> str:
        """Close the doors, evaluate what was accepted, close the files; return one line on what was done."""
        assert self._pipeline is not None  # noqa: S101
        for door in reversed(self._doors):
            door.stop(STOP_GRACE_S)
        self._pipeline.stop()
        self._pipeline.evaluator.windowing.flush()
        self._close_files()
        counts = self._pipeline.counts()
        return (
            f"stopped: {counts['exports']} exports, {counts.get('judged', 0)} streams judged, "
            f"{counts['in_flight']} still in flight (in the journal), {counts['decisions']} decisions"
        )

    def _close(self) -> None:
        for door in reversed(self._doors):
            door.stop(0)
        if self._pipeline is not None:
            self._pipeline.stop()
        self._close_files()

    def _close_files(self) -> None:
        for file in (self._windows, self._decisions):
            if file is not None:
                file.close()


def _append_to(path: Path | None) -> TextIO | None:
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")
