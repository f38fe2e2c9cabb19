"""`make bench-tools`: run every benchmark tool, compare its figures with ours, and write the table of the page."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from support.bench_tools.figures import Compared, check
from support.bench_tools.paced import PacedServer
from support.bench_tools.page import PAGE, write
from support.bench_tools.tools import TOOLS


def main() -> None:
    """Run all tools one after the other."""
    found: list[Compared] = []
    for tool in TOOLS:
        with tempfile.TemporaryDirectory() as folder, PacedServer() as server:
            run = tool(Path(folder), server.url)
            found.append(check(run))
        print(f"{run.tool} {run.version}: its figures and ours agree", file=sys.stderr)
    write(found)
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
