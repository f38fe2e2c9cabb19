"""Print both ends of each request of a journal: the application's reply to the browser above its model calls.

python examples/chat-app/rows.py JOURNAL
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import otel_llm.audit

MET = {True: "yes", False: "NO", None: "cannot say"}


def joined(journal: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each trace, the server's first, in order of their starts."""
    traces: dict[str, list[dict[str, Any]]] = {}
    for row in otel_llm.audit.load(journal).rows:
        traces.setdefault(str(row["trace_id"]), []).append(row)
    for rows in traces.values():
        rows.sort(key=lambda row: row["measured_at"] != "server")
    return traces


def show(journal: Path) -> None:
    """Print a line for each row, under the first letters of its trace's id."""
    print("trace     measured at  class  model               outcome       tokens  first text s  idle s  met")
    for trace_id, rows in joined(journal).items():
        name = trace_id[:8]
        for row in rows:
            words = f"{row['measured_at']:<11}  {row['slo_class']:<5}  {row['model'] or '-':<18}  {row['outcome']:<12}"
            first, idle = ("-" if at is None else format(at, ".3f") for at in (row["ttfo_s"], row["idle_s"]))
            print(f"{name:<8}  {words}  {row['tokens']:6}  {first:>12}  {idle:>6}  {MET[row['met']]}")
            name = ""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: rows.py JOURNAL")
    show(Path(sys.argv[1]))
