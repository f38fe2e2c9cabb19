"""`otel-llm collect`: builds the service from its options and runs it until a signal stops it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

# gRPC reads this at import. By default it logs every malformed request: any client could fill the log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import click

from otel_llm.actions.execute.executors import load_enforced
from otel_llm.actions.sinks.background_writer import BackgroundWriter
from otel_llm.actions.sinks.console import Console
from otel_llm.cli.option_types import Duration
from otel_llm.cli.output.echo import echo
from otel_llm.cli.service_options import decisions_option, named_files, rules_option, slo_option, verdicts_option
from otel_llm.cli.signals import Signals, StoppedEarly, end_early, end_service
from otel_llm.collector.keeping import keeping
from otel_llm.collector.plain_mode import notice
from otel_llm.collector.receive.listeners import Addresses
from otel_llm.collector.service import Service
from otel_llm.collector.settings import load_settings
from otel_llm.config.errors import StartError
from otel_llm.config.yaml_file import ConfigError
from otel_llm.evaluate.timers import Timeouts
from otel_llm.journal.checkpoint import RESUME_FILE
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.rules.lint.check import never_true
from otel_llm.shared.outputs import Inputs, OutputError, refuse_clashes
from otel_llm.shared.web.address import parse_address
from otel_llm.shared.web.open_files import allow_open_files

HARD_STOP_S: Final = 2.0
"""The process ends this long after the time for draining, at the latest."""
SHORTEST_WINDOW_NS: Final = 10_000_000
"""Shorter windows would spend most of the CPU time on closing them."""


def default_journal() -> Path:
    """Return the journal's folder in the user's state directory."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "otel-llm" / "journal"


@click.command()
@slo_option
@rules_option
@click.option(
    "--journal", type=click.Path(path_type=Path), help="Folder. [default: otel-llm/journal in the state directory]"
)
@decisions_option
@click.option(
    "--windows",
    "windows_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append closed windows here (JSON lines).",
)
@click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help="Limits, TLS, tokens, labels and more (YAML)."
)
@click.option(
    "--grpc", "grpc_at", default="127.0.0.1:4317", show_default=True, help="OTLP/gRPC. Port 0 picks a free one."
)
@click.option("--http", "http_at", default="127.0.0.1:4318", show_default=True, help="OTLP/HTTP (protobuf, JSON).")
@click.option("--web", "web_at", default="127.0.0.1:9464", show_default=True, help="Page, /metrics, /v1/streams.")
@click.option(
    "--window",
    type=Duration(SHORTEST_WINDOW_NS),
    default="10s",
    show_default=True,
    help="Length of a window, 10ms or more.",
)
@click.option(
    "--lateness", type=Duration(), default="5s", show_default=True, help="How long to wait for late segments."
)
@click.option(
    "--lost-after", type=Duration(), default="120s", show_default=True, help="A stream silent for this is lost."
)
@verdicts_option
def collect(  # one parameter an option
    slo_path: Path | None,
    rule_paths: tuple[str, ...],
    journal: Path | None,
    decisions: Path | None,
    windows_path: Path | None,
    config_path: Path | None,
    grpc_at: str,
    http_at: str,
    web_at: str,
    window: int,
    lateness: int,
    lost_after: int,
    verdicts: str,
) -> None:
    """Receive telemetry over OTLP and evaluate every stream live.

    Listens on this machine only by default. An export is acknowledged when it is in the journal. SIGTERM and Ctrl-C
    evaluate the accepted exports and stop; SIGHUP reloads classes, rules, tokens and certificates.

    \b
    Examples:
      otel-llm collect
      otel-llm collect --slo slo.yaml --rules rules/ --journal /var/lib/otel-llm/journal
      otel-llm collect --config collector.yaml --grpc 0.0.0.0:4317 --http 0.0.0.0:4318

    \b
    If other machines can reach it, collector.yaml should name certificates and tokens:
      version: 1
      tls: {certificate: server.pem, key: server.key}   # and client_ca: ca.pem for mTLS
      auth: {tokens_file: tokens.txt}                   # TENANT=TOKEN or a token a line
    """
    lines = BackgroundWriter(echo)
    folder = journal or default_journal()
    outputs = [path for path in (decisions, windows_path) if path is not None]
    try:
        settings = load_settings(config_path)
        files = [slo_path, config_path, folder / RESUME_FILE, *named_files(settings, written=False)]
        outputs += named_files(settings, written=True)
        refuse_clashes(outputs, Inputs(rules=rule_paths, journals=[folder], files=files))
        opened = allow_open_files(settings.limits.connections)
        classes = load_slo(slo_path)
        rules, rule_files = load_enforced(rule_paths, settings)
        service = Service(
            classes=classes,
            rules=rules,
            settings=settings,
            journal_folder=folder,
            decisions_path=decisions,
            windows_path=windows_path,
            at=Addresses(parse_address(grpc_at), parse_address(http_at), parse_address(web_at)),
            window_ns=window,
            timeouts=Timeouts(lateness_ns=lateness, lost_after_ns=lost_after),
            console=Console(echo=lines, verdicts=verdicts),
            load=lambda: (load_slo(slo_path), load_enforced(rule_paths, settings)[0]),
        )
        dead = never_true(rule_files, frozenset(classes.names))
        signals = Signals()
        service.prepare()
        signals.started()
    except StoppedEarly as stopped_early:
        end_early(stopped_early)
    except (ConfigError, StartError, OutputError) as problem:
        raise click.UsageError(str(problem)) from problem
    service.serve()  # `lines` holds the lines of decisions until `start`, after those below
    echo(service.listening())
    echo(service.summary())
    echo(keeping(settings, folder, decisions=decisions is not None))
    if service.resumed is not None:
        echo(service.resumed)
    more = [line for line in (notice(), opened) if line is not None]
    for warning in [*service.warnings, *more, *map(str, dead)]:
        echo(f"warning: {warning}", err=True)
    lines.start()
    while signals.next() == signal.SIGHUP:
        reloaded, failures = service.reload()
        if reloaded is not None:
            lines(reloaded)  # unlike `echo`, it does not raise when the output is closed
        for line in failures:
            echo(f"error: {line}", err=True)
    signals.exit_after(settings.limits.drain_s + HARD_STOP_S)
    lines("stopping: refusing new exports, evaluating the accepted ones")
    stopped = service.stop()
    end_service(lines, stopped.line, clean=stopped.clean)
