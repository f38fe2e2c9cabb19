"""No signal is lost, whichever thread the system hands it to."""

from __future__ import annotations

import subprocess
import sys

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
