"""Run the chat on this machine: a collector, the application, and a paced server unless OPENAI_BASE_URL names another.

    python examples/chat-app/run_chat.py [--port 8000] [--out FOLDER]

Ctrl-C ends it and prints both ends of each request.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import click
from rows import show

from otel_llm.demo.children import Child

HERE = Path(__file__).parent
START_S = 90.0  # the very first start of a collector compiles its kernels


@click.command()
@click.option("--port", default=8000, show_default=True, help="Of the page; 0 picks a free one.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the journal and logs.")
def main(port: int, out: Path | None) -> None:
    """Serve the chat until Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that either ends the children, too
    folder = Path(tempfile.mkdtemp(prefix="chat-app-")) if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | {
        "PYTHONUNBUFFERED": "1"
    }
    with ExitStack() as children, suppress(KeyboardInterrupt):

        def start(name: str, *command: str) -> Child:
            return children.enter_context(Child(name, [sys.executable, "-m", *command], env, folder / f"{name}.log"))

        addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--web", "127.0.0.1:0")
        collector = start("collector", "otel_llm.cli.main", "collect", "--journal", str(folder / "journal"), *addresses)
        listening = collector.wait_for(r"OTLP/gRPC (\S+), OTLP/HTTP \S+, web (\S+)", START_S)
        env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{listening.group(1)}", "OTEL_SERVICE_NAME": "chat-app"}
        print(f"collector  {listening.group(2)}")
        if "OPENAI_BASE_URL" not in env:
            model = start("model", "otel_llm.demo.paced_server")
            env |= {"OPENAI_BASE_URL": model.wait_for(r"http://\S+/v1", START_S).group(), "OPENAI_API_KEY": "none"}
        print(f"model      {env['OPENAI_BASE_URL']}")
        # A stop waits for replies in flight, but not for ever.
        serving = ("--app-dir", str(HERE), "--port", str(port), "--timeout-graceful-shutdown", "5")
        app = start("app", "uvicorn", *serving, "app:app")
        print(f"chat       {app.wait_for(r'http://[0-9.:]+', START_S).group()}  (Ctrl-C ends it)", flush=True)
        app.process.wait()
    if any((folder / "journal").glob("*.otlp*")):
        print("\nboth ends of each request:")
        show(folder / "journal")


if __name__ == "__main__":
    main()
