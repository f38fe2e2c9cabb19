"""How fast recorded streams are audited, beside a plain pandas audit and the floor of parsing the same bytes.

    python benchmarks/audit_speed.py [--tokens 2000000] [--folder DIR] [--jobs 1] [--skip-pandas]

Writes a journal of 500-token replies in segments of 64 tokens, one in segments of 16, and Parquet of the same streams;
audits each in a process of its own and prints tokens/s of CPU time (all processes together), ns a token, how that
compares with the floor, and the peak memory. `floor` parses every record with protobuf (upb) and reads the time of
every token, which any reader of these bytes through protobuf must do; `pandas` builds a DataFrame of tokens from that
and computes TTFT, gaps, idle time and attainment by groupby. `--tokens 100000000` is the size of the promise; it takes
2.5 GB of disk a journal. Nothing is asserted: the numbers are those of the machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from audit_speed_parts.journal import Shape, write_journal

if TYPE_CHECKING:
    from collections.abc import Callable

REPLY: Final = 500
SEGMENTS: Final = (64, 16)
WIDTHS: Final = (15, 9, 9, 7, 8)


def main() -> None:
    """Write the recordings, measure each way over each, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, help="where the recordings go for the time of the run")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--skip-pandas", action="store_true", help="it holds every token several times")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(one(options.one[0], Path(options.one[1]), options.jobs)))
        return
    names = ("M tokens/s cpu", "ns/token", "of floor", "wall s", "peak MB")
    print(
        f"{'recording':24} {'way':16} "
        + " ".join(f"{name:>{width}}" for name, width in zip(names, WIDTHS, strict=True))
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for segment in SEGMENTS:
            path = Path(folder) / f"{segment}.otlp"
            write_journal(path, options.tokens // REPLY, Shape(REPLY, segment))
            ways = ["floor", "audit", "audit+windows", *([] if options.skip_pandas else ["pandas"])]
            _table(f"journal, segments of {segment}", path, ways, options.jobs)
            if segment == SEGMENTS[0]:
                parquet = Path(folder) / "streams.parquet"
                _measured("convert", path, 1)
            path.unlink()
        _table("Parquet", parquet, ["audit", "audit+windows"], options.jobs)


def _table(name: str, path: Path, ways: list[str], jobs: int) -> None:
    floor_ns = None
    for way in ways:
        found = _measured(way, path, jobs)
        ns = found["cpu_s"] / found["tokens"] * 1e9
        floor_ns = ns if way == "floor" else floor_ns
        ratio = f"{ns / floor_ns:.2f}" if floor_ns is not None else ""
        print(
            f"{name:24} {way:16} {1e3 / ns:15.2f} {ns:9.0f} {ratio:>9} {found['wall_s']:7.1f} {found['peak_mb']:8.0f}",
            flush=True,
        )


def _measured(way: str, path: Path, jobs: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", way, str(path), "--jobs", str(jobs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def one(way: str, path: Path, jobs: int) -> dict[str, float]:
    """Run one way over one recording, and return what it took.

    The time of what is imported is not counted; its memory is, about 100 MB in every way.
    """
    import pandas as pd  # which pyarrow looks for, and its Parquet, would otherwise be imported on the way
    import pyarrow.parquet  # noqa: F401

    from otel_llm import audit
    from otel_llm.rules.slo_file import load_slo

    slo = load_slo(None)
    ways: dict[str, Callable[[], int]] = {
        "floor": lambda: floor(path),
        "pandas": lambda: with_pandas(path),
        "convert": lambda: convert(path),
        "audit": lambda: audit.load(path, slo=slo, windows=False, jobs=jobs).summary()["tokens"],
        "audit+windows": lambda: audit.load(path, slo=slo, jobs=jobs).summary()["tokens"],
    }
    if way == "pandas":
        pd.DataFrame({"a": [1]}).groupby("a").size()
    began, cpu_s = time.perf_counter(), _cpu_s()
    tokens = ways[way]()
    cpu_s, wall_s = _cpu_s() - cpu_s, time.perf_counter() - began
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {"tokens": tokens, "cpu_s": cpu_s, "wall_s": wall_s, "peak_mb": sum(peaks) / 1024}


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def floor(path: Path) -> int:
    """Parse every record and read every token's time; return how many there were."""
    from otel_llm.readers.bytestream import open_chunks
    from otel_llm.readers.journal_format import split_stream
    from otel_llm.readers.otlp import parse

    tokens = 0
    for record in split_stream(open_chunks(path, Counter()), Counter()):
        for resource_spans in parse(record.raw).resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    tokens += len([event.time_unix_nano for event in span.events])
    return tokens


def with_pandas(path: Path) -> int:
    """Audit as one does in a notebook: a DataFrame of tokens, and groupby; for one class, of whole requests only."""
    import pandas as pd

    from otel_llm.readers.bytestream import open_chunks
    from otel_llm.readers.journal_format import split_stream
    from otel_llm.readers.otlp import parse

    requests: list[bytes] = []
    times: list[int] = []
    commits: dict[bytes, int] = {}
    for record in split_stream(open_chunks(path, Counter()), Counter()):
        for resource_spans in parse(record.raw).resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    if span.name == "otel_llm.segment":
                        key = span.trace_id
                        own = [event.time_unix_nano for event in span.events]
                        requests += [key] * len(own)
                        times += own
                        commits[key] = min(commits.get(key, span.start_time_unix_nano), span.start_time_unix_nano)
    tokens = pd.DataFrame({"request": requests, "time": times}).sort_values(["request", "time"])
    groups = tokens.groupby("request", sort=False)["time"]
    commit = tokens["request"].map(commits)
    tokens["due"] = commit + (groups.cumcount() + 1) * 200_000_000
    tokens["late"] = tokens["time"] - tokens["due"]
    tokens["gap"] = groups.diff()
    rows = tokens.groupby("request", sort=False).agg(
        first=("time", "first"),
        tokens=("time", "size"),
        idle=("late", "max"),
        tbt_p50=("gap", "median"),
        tbt_p99=("gap", lambda gaps: gaps.quantile(0.99)),
        tbt_max=("gap", "max"),
    )
    rows["idle"] = rows["idle"].clip(lower=0)
    rows["ttft"] = rows["first"] - pd.Series(commits)
    rows["met"] = rows["idle"] <= 1_000_000_000
    return int(rows["tokens"].sum())


def convert(path: Path) -> int:
    """Write the streams of a journal as Parquet beside it."""
    from otel_llm import audit
    from otel_llm.audit.parquet_streams import Writer

    with (path.parent / "streams.parquet").open("wb") as file:
        writer = Writer(file)
        for batch in audit.load_streams(path):
            writer.write(batch)
        writer.close()
    return 1


if __name__ == "__main__":
    main()
