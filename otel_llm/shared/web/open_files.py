"""Open files: every connection is one, and the usual limit of a process (1024) is below what the listeners let in."""

from __future__ import annotations

import resource
from typing import Final

LISTENERS: Final = 3
OTHER_FILES: Final = 128
"""The journal, the program's own, polling, what is forwarded."""


def allow_open_files(connections: int) -> str | None:
    """Raise this process's limit as far as it may; return a warning where so many connections a listener do not fit."""
    needed = LISTENERS * connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= needed:
        if soft != resource.RLIM_INFINITY and soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return (
        f"{connections} connections a listener need {needed} open files, {hard} are allowed: raise the hard limit"
        " (ulimit -Hn, LimitNOFILE=), or lower limits.connections in --config"
    )
