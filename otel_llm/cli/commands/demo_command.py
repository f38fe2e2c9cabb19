"""`otel-llm demo`: runs all parts on this machine, from tokens to verdicts, a rule that fires, and the report."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.live import Live
from rich.table import Table

import otel_llm.audit
from otel_llm.cli.output.live_view import view
from otel_llm.cli.output.terminal_console import SafeConsole
from otel_llm.cli.web_client import Source
from otel_llm.demo import demo_children
from otel_llm.demo.children import Child
from otel_llm.shared.clock import monotonic_s, wall_ns

if TYPE_CHECKING:
    from rich.console import Console

REPLIES_S = 60.0
VERDICTS_S = 20.0
FILE_WIDTH = 120


def _environment(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a folder that is no vLLM environment, before the collector starts."""
    missing = [] if path is None else [part for part in (path / "bin" / "vllm", path / "tiny") if not part.exists()]
    if missing:
        raise click.BadParameter(f"no vLLM environment: {missing[0]} is missing; `make vllm-env` makes .venv-vllm")
    return path


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Folder for the journal, the decisions and the report; each run has a folder in it.",
)
@click.option(
    "--vllm",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    callback=_environment,
    help="A vLLM environment with a model folder `tiny`: a real engine replaces the scripted server.",
)
@click.option("--relay", is_flag=True, help="Compare two servers, one stalling, without and with the relay.")
@click.option("--live/--no-live", default=None, help="The live view. [default: on a terminal]")
def demo(out: Path, vllm: Path | None, relay: bool, live: bool | None) -> None:
    """Show all parts on this machine, in half a minute.

    A collector, a streaming server, thirty concurrent requests through the OpenAI SDK instrumented with one line,
    a rule that fires, then the audit of the collector's own journal. Exits 0 if the live verdicts and the audit's
    are the same to the nanosecond, 1 if not.

    \b
    Example:
      otel-llm demo --out demo-out
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it then ends the child processes, too
    console = SafeConsole(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)
    folder = out / datetime.fromtimestamp(wall_ns() / 1e9, UTC).strftime("run-%Y%m%dT%H%M%SZ")
    folder.mkdir(parents=True, exist_ok=True)
    watched = console.is_terminal if live is None else live
    if relay:
        from otel_llm.demo.demo_relay import show_relay

        sys.exit(0 if show_relay(console, folder, vllm, watched=watched) else 1)
    with ExitStack() as children:
        collector = children.enter_context(demo_children.collector(folder))
        listening = collector.wait_for(demo_children.LISTENING, demo_children.START_S)
        grpc, web = listening.group(1), listening.group(3)
        console.print(f"collector  {listening.group(0)}")
        console.print(f"page       {web}/  (open it: the streams in flight, live, until the demo ends)")
        if vllm is None:
            base_url = demo_children.paced_url(
                children.enter_context(demo_children.paced_server(folder / "server.log"))
            )
        else:
            server = children.enter_context(demo_children.vllm_server(folder / "vllm.log", vllm))
            base_url = demo_children.vllm_url(server)
        console.print(f"server     {'a real vLLM' if vllm else 'scripted replies'} at {base_url}")
        client = children.enter_context(_client(folder, base_url, grpc, vllm))
        console.print("client     30 concurrent requests through the OpenAI SDK, instrumented with one line\n")
        snapshot = _watch(console, web, client, watched=watched)
        collector_status = collector.stop()
    if collector_status != 0:
        raise collector.failure(f"stopped with status {collector_status}")
    report = folder / "report.html"
    audit = otel_llm.audit.load(folder / "journal")
    audit.write_html(report)
    audit.write_requests(folder / "requests.csv")
    _print_rows(console, audit.rows)
    _print_decisions(console, snapshot["decisions"], audit.rows)
    same = _compare(console, snapshot["recent"], audit.rows)
    console.print(
        f"\njournal    {folder / 'journal'}\ndecisions  {folder / 'decisions.jsonl'}\nreport     {report}  (open it)"
    )
    sys.exit(0 if same else 1)


def _client(folder: Path, base_url: str, grpc: str, vllm: Path | None) -> Child:
    command = [sys.executable, "-m", "otel_llm.demo.demo_client", base_url]
    if vllm is not None:
        command += ["--model", "tiny"]
    return Child(
        "client",
        command,
        demo_children.quiet_environment() | demo_children.telemetry(grpc, "demo-chat"),
        folder / "client.log",
    )


def _watch(console: Console, web: str, client: Child, *, watched: bool) -> dict[str, Any]:
    """Poll the collector until the client has ended and every stream is judged; return the last snapshot."""
    source = Source(web)
    limit = monotonic_s() + REPLIES_S
    with ExitStack() as stack:
        screen = stack.enter_context(Live(console=console, auto_refresh=False, transient=True)) if watched else None
        while True:
            ended = client.process.poll() is not None
            snapshot = source.streams()
            if screen is not None:
                screen.update(view(snapshot), refresh=True)
            if ended and client.process.returncode != 0:
                raise client.failure(f"ended with status {client.process.returncode}")
            if ended and snapshot["in_flight"] == 0 and snapshot["queue"] == 0:
                return snapshot
            if ended:
                limit = min(limit, monotonic_s() + VERDICTS_S)
            if monotonic_s() > limit:
                raise click.ClickException(f"not every stream was judged in time: {snapshot['in_flight']} in flight")
            time.sleep(0.1)


def _print_rows(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(title="what each reader felt", title_justify="left", box=None, pad_edge=False)
    for name in ("reply", "outcome"):
        table.add_column(name, no_wrap=True)
    for name in ("tokens", "first text s", "max gap s", "fluidity", "idle s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("met", no_wrap=True)
    for row in sorted(rows, key=lambda one: (str(one["model"]), one["start_unix_nano"] or 0)):
        table.add_row(
            str(row["model"]),
            str(row["outcome"]),
            str(row["tokens"]),
            _digits(row["ttfo_s"]),
            _digits(row["tbt_max_s"]),
            _digits(row["fluidity_index"]),
            _digits(row["idle_s"]),
            {True: "yes", False: "NO", None: "cannot say"}[row["met"]],
        )
    console.print(table)


def _print_decisions(console: Console, decisions: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    """Print the rules that fired, with their replies, and one decision."""
    replies = {row["trace_id"]: str(row["model"]) for row in rows}
    fired = [one for one in decisions if one["state"] == "firing"]
    if not fired:
        console.print("\nno rule fired")
        return
    console.print("\nrules that fired (in shadow: decided and recorded, not done)")
    for rule in dict.fromkeys(str(one["rule"]) for one in fired):
        streams = {one["trace_id"] for one in fired if one["rule"] == rule}
        kinds = Counter(replies.get(stream, "?") for stream in streams)
        console.print(f"  {rule} on " + ", ".join(f"{count} of {name}" for name, count in sorted(kinds.items())))
    first = fired[0]
    facts = ", ".join(f"{name} {_fact(value)}" for name, value in first["facts"].items())
    console.print(
        f"  for example {first['action']} on {first['trace_id'][:8]}: {first['outcome']} ({facts})", markup=False
    )


def _compare(console: Console, live: list[dict[str, Any]], audited: list[dict[str, Any]]) -> bool:
    """Compare the collector's verdicts with the audit of its journal, value by value; return whether they are equal."""

    def by_key(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int], dict[str, Any]]:
        return {(row["trace_id"], row["span_id"], row["choice"]): row for row in rows}

    ours, theirs = by_key(live), by_key(audited)
    different = [key for key in sorted(ours.keys() | theirs.keys()) if ours.get(key) != theirs.get(key)]
    if not different:
        console.print(f"\nlive and audit agree on all {len(ours)} requests, every column, to the nanosecond")
        return True
    console.print(f"\n[red]live and audit differ on {len(different)} of {len(ours)} requests:[/red]")
    for key in different[:5]:
        a, b = ours.get(key) or {}, theirs.get(key) or {}
        names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
        words = ", ".join(f"{name}: {a.get(name)} / {b.get(name)}" for name in names)
        console.print(f"  {re.sub('^0+', '', key[0])[:16]}: {words}", markup=False)
    return False


def _fact(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
