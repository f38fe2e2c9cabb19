"""`otel-llm` as a process that writes on SIGUSR2 how many tasks its loop has, to the file that `TASKS_FILE` names."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from otel_llm.cli.main import main

TASKS_FILE = "OTEL_LLM_TEST_TASKS_FILE"


def _count(_signal: int, _frame: object) -> None:
    try:
        number = len(asyncio.all_tasks())
    except RuntimeError:  # no loop runs yet
        return
    reported = Path(os.environ[TASKS_FILE])
    reported.with_suffix(".new").write_text(str(number))
    reported.with_suffix(".new").rename(reported)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _count)
    sys.exit(main())
