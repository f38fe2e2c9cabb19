"""`otel-llm relay`: builds the reverse proxy from its options and runs it until a signal stops it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Final

import click

from otel_llm.actions.execute.executors import RELAY_DOES, load_enforced
from otel_llm.actions.sinks.background_writer import BackgroundWriter
from otel_llm.actions.sinks.console import Console
from otel_llm.cli.output.echo import echo
from otel_llm.cli.service_options import decisions_option, named_files, rules_option, slo_option, verdicts_option
from otel_llm.cli.signals import end_service, exit_now
from otel_llm.config.errors import StartError
from otel_llm.config.yaml_file import ConfigError
from otel_llm.relay.service import Service
from otel_llm.relay.settings import load_settings
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.rules.lint.check import never_true
from otel_llm.scheduling.placement import DEFAULT, POLICIES, POLYSERVE
from otel_llm.scheduling.release_order import DEFAULT_ORDER, ORDERS
from otel_llm.shared.outputs import Inputs, OutputError, refuse_clashes
from otel_llm.shared.web.address import parse_address
from otel_llm.shared.web.open_files import allow_open_files

_PLACEMENTS: Final = ", ".join(name for name in (*POLICIES, POLYSERVE) if name != DEFAULT)
_ORDERS: Final = ", ".join(name for name in ORDERS if name != DEFAULT_ORDER)
EXAMPLES: Final = f"""
\b
Examples:
  otel-llm relay --backend a=http://10.0.0.1:8000 --backend b=http://10.0.0.2:8000
  otel-llm relay --config relay.yaml --rules rules/ --decisions decisions.jsonl

\b
relay.yaml:
  version: 1
  backends:
    a: {{url: 'http://10.0.0.1:8000'}}                  # kind: vllm (default), sglang, openai
    b: {{url: 'http://10.0.0.2:8000', api_key_file: b.key}}
  placement: {DEFAULT}     # {_PLACEMENTS}
  queue: {{in_flight: 64, order: {DEFAULT_ORDER}}}       # {_ORDERS}; what the backends have no place for waits
  failover: {{connect_retries: 2, resume: true, first_byte: 60s}}
  preempt: {{resume_runway: 2s, calm: 1s, max_paused: 64}}
  actions: {{secret_file: relay.secret}}      # takes signed commands of a collector
"""


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "otel-llm" / "relay"


@click.command(epilog=EXAMPLES)
@click.option("--backend", "backends", multiple=True, metavar="[NAME=]URL", help="A replica; repeat it for each.")
@click.option(
    "--listen", "at", default="127.0.0.1:8080", show_default=True, help="For clients. Port 0 picks a free one."
)
@click.option("--web", "web_at", default="127.0.0.1:9465", show_default=True, help="Page, /metrics, /v1/streams.")
@slo_option
@rules_option
@decisions_option
@click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help="Backends, limits, TLS, tokens and more (YAML)."
)
@verdicts_option
def relay(
    backends: tuple[str, ...],
    at: str,
    web_at: str,
    slo_path: Path | None,
    rule_paths: tuple[str, ...],
    decisions: Path | None,
    config_path: Path | None,
    verdicts: str,
) -> None:
    """Pass streams on, measure each, and move those whose readers are about to run dry.

    A reverse proxy for the OpenAI HTTP API in front of the replicas of a model. It listens on this machine only by
    default. SIGTERM and Ctrl-C let streams end; a second signal ends it at once. SIGHUP reloads classes, rules,
    tokens, secrets and certificates.
    """
    lines = BackgroundWriter(echo)
    try:
        settings = load_settings(config_path, backends)
        outputs = [*([] if decisions is None else [decisions]), *named_files(settings, written=True)]
        files = [slo_path, config_path, *named_files(settings, written=False)]
        refuse_clashes(outputs, Inputs(rules=rule_paths, files=files))
        opened = allow_open_files(settings.limits.connections)
        classes = load_slo(slo_path)
        rules, rule_files = load_enforced(rule_paths, settings, RELAY_DOES)
        service = Service(
            classes=classes,
            rules=rules,
            settings=settings,
            decisions_path=decisions,
            folder=_folder(),
            at=parse_address(at),
            web_at=parse_address(web_at),
            console=Console(echo=lines, verdicts=verdicts),
            load=lambda: (load_slo(slo_path), load_enforced(rule_paths, settings, RELAY_DOES)[0]),
        )
        dead = never_true(rule_files, frozenset(classes.names))
        service.prepare()
    except (ConfigError, StartError, OutputError) as problem:
        raise click.UsageError(str(problem)) from problem
    echo(service.listening())
    echo(service.judging())
    for warning in [*service.warnings(), *([] if opened is None else [opened]), *map(str, dead)]:
        echo(f"warning: {warning}", err=True)
    lines.start()
    asyncio.run(_run(service, lines))
    last = "stopped" if service.clean else "stopped: streams were cut at the end of the drain time"
    end_service(lines, last, clean=service.clean)


async def _run(service: Service, lines: BackgroundWriter) -> None:
    """Run a service; let signals stop and reload it."""
    loop = asyncio.get_running_loop()

    def stop(signum: int) -> None:
        if service.stop.is_set():
            exit_now(128 + signum, "otel-llm: ended at once\n")
        service.stop.set()
        lines("stopping: no new requests, streams end by themselves")

    def reload() -> None:
        reloaded, failures = service.reload()
        if reloaded is not None:
            lines(reloaded)  # unlike `echo`, it does not raise when the output is closed
        for line in failures:
            echo(f"error: {line}", err=True)

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop, signum)
    loop.add_signal_handler(signal.SIGHUP, reload)
    await service.run()
