"""No signal is lost, whichever thread the system hands it to, and a stop ends whatever the output does."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.commands import environment
from support.patience import WAIT_S

# The handler runs in the main thread alone, and a wait there is not ended by a signal that another thread was handed.
TOLD_BESIDE = """
import signal, threading, time
from otel_llm.cli.signals import Signals

signals = Signals()

def tell():
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
    time.sleep(3600)

threading.Thread(target=tell, daemon=True).start()
print(signals.next() == signal.SIGHUP)
"""


def test_a_signal_that_another_thread_was_handed_is_seen() -> None:
    found = subprocess.run(
        [sys.executable, "-c", TOLD_BESIDE],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert found.stdout == "True\n", found.stderr


# The first argument says whether standard output is `full` from the start, the second how the service stopped.
ENDED = """
import fcntl, os, sys
from otel_llm.actions.sinks.background_writer import BackgroundWriter
from otel_llm.cli.output.echo import echo
from otel_llm.cli.signals import end_service

if sys.argv[1] == "full":
    flags = fcntl.fcntl(1, fcntl.F_GETFL)
    fcntl.fcntl(1, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try:
        while True:
            os.write(1, b"x")
    except BlockingIOError:
        fcntl.fcntl(1, fcntl.F_SETFL, flags)
lines = BackgroundWriter(echo)
lines.start()
end_service(lines, "the last line", clean=sys.argv[2] == "clean")
"""


@pytest.mark.parametrize(
    ("output", "stop", "status"), [("full", "clean", 1), ("full", "cut", 1), ("read", "clean", 0), ("read", "cut", 1)]
)
def test_a_service_ends_even_if_its_output_is_not_read(output: str, stop: str, status: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDED, output, stop],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.wait(WAIT_S) == status
        assert process.stdout is not None
        assert process.stderr is not None
        unread = process.stderr.read() == "otel-llm: stopped; its last lines were not read\n"
        assert unread == (output == "full")
        assert process.stdout.read().endswith("the last line\n") == (output == "read")
