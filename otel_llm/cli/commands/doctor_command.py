"""`otel-llm doctor`: checks an application's environment, and the application as it runs there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from otel_llm.cli.option_types import KnownRange, format_option
from otel_llm.cli.output.echo import echo
from otel_llm.instrumentation.doctor.checks import examine
from otel_llm.instrumentation.doctor.finding import Situation, worst_status
from otel_llm.instrumentation.doctor.program import run
from otel_llm.instrumentation.doctor.program_checks import examine_program
from otel_llm.instrumentation.doctor.report_format import as_json, lines
from otel_llm.shared.outputs import OutputError, replacing

PROBLEM = 1


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@format_option("text", "json", of="Of the report.")
@click.option("--classes", help="SLO classes that the collector knows, separated by commas.")
@click.option(
    "--timeout",
    "timeout_s",
    type=KnownRange(0.1, 60),
    default=10.0,
    show_default=True,
    help="Seconds to wait for the endpoint; a shorter OTEL_EXPORTER_OTLP_TIMEOUT wins.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write the report to this file. [default: standard output; standard error beside COMMAND]",
)
def doctor(
    command: tuple[str, ...], output_format: str, classes: str | None, timeout_s: float, output: Path | None
) -> None:
    """Find faults that keep streams from being recorded; with COMMAND, run it recorded and report at its end.

    \b
    Examples:
      otel-llm doctor
      otel-llm doctor --classes chat,code --format json
      otel-llm doctor -- uvicorn app:app --port 8000

    Run it in the application's environment, with its variables. It sends one empty export to the endpoint of
    OTEL_EXPORTER_OTLP_*. COMMAND gets the standard streams and signals; it must be a Python program.

    \b
    Exit code:
      0  no problem (there may be warnings)
      1  a problem: data is lost
      2  bad usage, or COMMAND cannot be started
    With COMMAND, its own exit status unless that is 0.
    """
    situation = Situation(
        classes=None if classes is None else frozenset(name.strip() for name in classes.split(",") if name.strip()),
        timeout_s=timeout_s,
    )
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's log lines would interrupt the report
    ran = None
    if command:
        try:
            ran = run(command, situation.environ)
        except OSError as error:
            raise click.UsageError(f"cannot start {command[0]}: {error.strerror}") from error
    findings = examine(situation)
    if ran is not None:
        findings += examine_program(situation, ran.reports)
    report = as_json(findings, ran) if output_format == "json" else "\n".join(lines(findings))
    if output is None:
        echo(report, err=ran is not None)
    else:
        try:
            with replacing(output) as file:
                file.write(f"{report}\n".encode())
        except OutputError as error:
            raise click.UsageError(str(error)) from error
    status = 0 if ran is None else ran.exit_status
    sys.exit(status or (PROBLEM if worst_status(findings) == "problem" else 0))
