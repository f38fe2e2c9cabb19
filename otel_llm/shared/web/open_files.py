"""The limit on open files: each connection needs one, and the usual limit (1024) is below that on connections."""

from __future__ import annotations

import resource
from typing import Final

LISTENERS: Final = 3
OTHER_FILES: Final = 128
"""The journal, the program's own files, polling, forwarding."""


def allow_open_files(connections: int) -> str | None:
    """Raise this process's limit as far as possible; return a warning if it is too low for `connections` a listener."""
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
