"""Run the whole alert path on this machine: replies, one stall, the collector, Alertmanager, a pager that prints.

    python examples/idle-alert/run_alert.py [--out FOLDER]

Exits 0 when the stall paged and resolved, 1 when it did not within a minute.
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
import yaml
from pager import Pager
from readers import STALLED

import otel_llm.audit
from otel_llm.demo.children import Child

HERE = Path(__file__).parent
START_S = 90.0  # the very first start of a collector compiles its kernels
PAGE_S = 60.0


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for journal, logs and settings.")
def main(out: Path | None) -> None:
    """Show one stall that pages and resolves."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends the children, too
    folder = Path(tempfile.mkdtemp(prefix="idle-alert-")) if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    secret = secrets.token_bytes(32)
    (folder / "pager.secret").write_text(f"whsec_{base64.b64encode(secret).decode()}\n", encoding="ascii")
    pager = Pager(secret)
    print(f"pager         http://{pager.address}")
    with ExitStack() as children:
        command = [sys.executable, "-m", "otel_llm.demo.paced_server"]
        server = children.enter_context(Child("server", command, environment(), folder / "server.log"))
        alertmanager = start_alertmanager(children, folder, pager)
        grpc, web = start_collector(children, folder, pager, alertmanager)
        print(f"collector     OTLP/gRPC {grpc}, page and /metrics {web}")
        base_url = server.wait_for(r"http://\S+/v1", START_S).group()
        print(f"server        {base_url}\n\nnine users read; one reply will stall for three seconds")
        command = [sys.executable, str(HERE / "readers.py"), base_url]
        telemetry = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{grpc}", "OTEL_SERVICE_NAME": "chat"}
        readers = children.enter_context(Child("readers", command, environment() | telemetry, folder / "readers.log"))
        senders = {"collector"} if alertmanager is None else {"collector", "Alertmanager"}
        shown = all(pager.wait_for(status, STALLED, senders, PAGE_S) for status in ("firing", "resolved"))
        if readers.process.wait(PAGE_S) != 0:
            raise readers.failure("failed")
    if not shown:
        raise click.ClickException(f"no page, or no end of it, within {PAGE_S:.0f} s: see the logs in {folder}")
    print("\nwhat the users felt, from the journal:")
    rows = otel_llm.audit.load(folder / "journal").rows
    for row in sorted(rows, key=lambda row: (row["idle_s"], row["model"])):
        times = f"TTFT {row['ttft_s']:.2f} s  longest gap {row['tbt_max_s']:.2f} s  idle {row['idle_s']:.2f} s"
        print(f"  {row['model']:<20}  {times}")
    print(f"\neverything is in {folder}")


def start_alertmanager(children: ExitStack, folder: Path, pager: Pager) -> str | None:
    """Start Alertmanager on a free port; return its address, or None if it is not installed."""
    program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if program is None:
        print("alertmanager  not installed (Debian: prometheus-alertmanager); the collector notifies the pager alone")
        return None
    settings = yaml.safe_load((HERE / "alertmanager.yml").read_text(encoding="utf-8"))
    settings["receivers"][0]["webhook_configs"][0]["url"] = f"http://{pager.address}/alertmanager"
    command = [
        *(program, f"--config.file={written(settings, folder / 'alertmanager.yml')}"),
        *(f"--storage.path={folder / 'alertmanager'}", "--web.listen-address=127.0.0.1:0", "--cluster.listen-address="),
    ]
    child = children.enter_context(Child("Alertmanager", command, environment(), folder / "alertmanager.log"))
    address = child.wait_for(r'"Listening on" address=(\S+)', START_S).group(1)
    print(f"alertmanager  http://{address}")
    return address


def start_collector(children: ExitStack, folder: Path, pager: Pager, alertmanager: str | None) -> tuple[str, str]:
    """Start the collector on free ports; return the addresses of its gRPC receiver and its page."""
    settings = yaml.safe_load((HERE / "settings.yaml").read_text(encoding="utf-8"))
    settings["receivers"]["pager"]["url"] = f"http://{pager.address}/collector"
    if alertmanager is None:
        del settings["alertmanager"]
    else:
        settings["alertmanager"]["urls"] = [f"http://{alertmanager}"]
    command = [
        *(sys.executable, "-m", "otel_llm.cli.main", "collect", "--rules", str(HERE / "rules.yaml")),
        *("--config", written(settings, folder / "settings.yaml"), "--journal", str(folder / "journal")),
        *("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--web", "127.0.0.1:0"),
    ]
    child = children.enter_context(Child("collector", command, environment(), folder / "collector.log"))
    listening = child.wait_for(r"OTLP/gRPC (\S+), OTLP/HTTP \S+, web (\S+)", START_S)
    return listening.group(1), listening.group(2)


def written(settings: object, file: Path) -> str:
    """Write settings with the addresses of this run; return the file's path."""
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return str(file)


def environment() -> dict[str, str]:
    """Return the environment without telemetry settings of the caller."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return kept | {"PYTHONUNBUFFERED": "1"}


if __name__ == "__main__":
    main()
