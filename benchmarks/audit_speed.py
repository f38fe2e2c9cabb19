"""How fast recorded streams are audited, beside a plain pandas audit and the floor of parsing the same bytes.

    python benchmarks/audit_speed.py [--tokens 2000000] [--folder DIR] [--jobs 1] [--skip-pandas]
        [--recording journal,otlp,sparse,parquet] [--segment-tokens 64,16]

Writes replies of 500 tokens in segments of 64 tokens, then of 16, as a journal, as OTLP protobuf of the SDK's encoding
(a Collector's file exporter, `format: proto`) and of one that leaves out status and flags (`sparse`), and as Parquet;
audits each in a process of its own and prints tokens/s of CPU time (all processes together), ns a token, how that
compares with the floor, and the peak memory. `floor` parses every record with protobuf (upb) and reads the time of
every token, which any reader of these bytes through protobuf must do; that of Parquet is the floor of the same streams
as a journal. `pandas` builds a DataFrame of tokens from that and computes TTFT, gaps, idle time and attainment by
groupby. `--tokens 100000000` is the size of the promise; it takes 2.5 GB of disk a recording. Nothing is asserted: the
numbers are those of the machine.
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
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from audit_speed_parts.journal import Shape, write_journal

if TYPE_CHECKING:
    from collections.abc import Callable

REPLY: Final = 500
FORMS: Final = {
    "journal": (Shape(REPLY), ".otlp"),
    "otlp": (Shape(REPLY, sealed=False), ".pb"),
    "sparse": (Shape(REPLY, sealed=False, sparse=True), ".pb"),
}
"""By name: the shape of what is written, and how its file is called."""
PARQUET: Final = "parquet"
WIDTHS: Final = (15, 9, 9, 7, 8)


def main() -> None:
    """Write the recordings, measure each way over each, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, help="where the recordings go for the time of the run")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--skip-pandas", action="store_true", help="it holds every token several times")
    parser.add_argument("--recording", type=_recordings, default=[*FORMS, PARQUET], help="comma-separated, of these")
    parser.add_argument("--segment-tokens", type=_numbers, default=[64, 16], help="comma-separated")
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
        for segment, name in product(options.segment_tokens, options.recording):
            if name != PARQUET or segment == options.segment_tokens[0]:  # Parquet has no segments
                _table(Path(folder), name, segment, options)


def _table(folder: Path, name: str, segment: int, options: argparse.Namespace) -> None:
    """Write a recording, measure each way over it, print a row a way, and remove the recording."""
    shape, suffix = FORMS["journal" if name == PARQUET else name]
    path = folder / f"streams{suffix}"
    write_journal(path, options.tokens // REPLY, replace(shape, segment=segment))
    floor = _measured("floor", path, 1)
    floor_ns = floor["cpu_s"] / floor["tokens"] * 1e9
    ways = ["audit", "audit+windows"]
    if name == PARQUET:
        _measured("convert", path, 1)
        path.unlink()
        path = folder / "streams.parquet"
    else:
        _row(name, segment, "floor", floor, floor_ns)
        ways += [] if options.skip_pandas or name != "journal" else ["pandas"]
    for way in ways:
        _row(name, segment, way, _measured(way, path, options.jobs), floor_ns)
    path.unlink()


def _row(name: str, segment: int, way: str, found: dict[str, Any], floor_ns: float) -> None:
    ns = found["cpu_s"] / found["tokens"] * 1e9
    recording = name if name == PARQUET else f"{name}, segments of {segment}"
    print(
        f"{recording:24} {way:16} {1e3 / ns:15.2f} {ns:9.0f} {ns / floor_ns:9.2f}"
        f" {found['wall_s']:7.1f} {found['peak_mb']:8.0f}",
        flush=True,
    )


def _recordings(text: str) -> list[str]:
    if unknown := set(text.split(",")) - {*FORMS, PARQUET}:
        raise argparse.ArgumentTypeError(f"{min(unknown)!r}: known are {', '.join((*FORMS, PARQUET))}")
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


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
    from otel_llm.rules.files.slo_file import load_slo

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
    from otel_llm.formats.io.bytestream import open_chunks
    from otel_llm.formats.io.journal_format import split_stream
    from otel_llm.formats.otlp.export_request import parse

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

    from otel_llm.formats.io.bytestream import open_chunks
    from otel_llm.formats.io.journal_format import split_stream
    from otel_llm.formats.otlp.export_request import parse

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
    from otel_llm.audit.input.parquet_streams import Writer

    with (path.parent / "streams.parquet").open("wb") as file:
        writer = Writer(file)
        for batch in audit.load_streams(path):
            writer.write(batch)
        writer.close()
    return 1


if __name__ == "__main__":
    main()
