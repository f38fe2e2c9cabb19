"""Stop a process group with SIGSTOP for a while, and let it continue even if this process dies."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# A process of its own, so that the group continues even if this one is killed meanwhile.
_SCRIPT: Final = """\
trap 'kill -s CONT -- -$0; kill $sleeping; exit' TERM INT HUP
kill -s STOP -- -$0
sleep $1 & sleeping=$!
wait
kill -s CONT -- -$0
"""
_SHELL: Final = "/bin/sh"


@contextmanager
def stopped_group(group: int, seconds: float) -> Iterator[None]:
    """Stop a process group now, for `seconds` or until the block ends, whichever is first."""
    keeper = subprocess.Popen(  # noqa: S603  our own script, with numbers
        [_SHELL, "-c", _SCRIPT, str(group), f"{seconds:g}"], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        keeper.terminate()
        keeper.wait()
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)
