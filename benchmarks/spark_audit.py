"""The audit on Spark with one worker and with two, beside the same in one process, in tokens a second.

    make spark-env
    .venv-spark/bin/python benchmarks/spark_audit.py [--tokens 20_000_000]

Columns: requests judged from Parquet of streams, windows added up from it, requests judged from a journal; the best of
the runs after one to warm up. A worker is a process with one core. `one process` is `judge_batch` and
`window_partials` over the same files, and the local audit's reader over the same journal: what a worker does but for
Spark.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from otel_llm.audit import load_streams
from otel_llm.audit.input.stream_batch import STREAMS
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.audit.kernel.window_totals import merge_partials, window_partials
from otel_llm.audit.load import LATENESS_NS
from otel_llm.formats.io.journal_format import frame
from otel_llm.rules.files.slo_file import load_slo

if TYPE_CHECKING:
    from collections.abc import Callable

T0_NS = 1_790_000_000_000_000_000
WINDOW_NS = 10_000_000_000
FILES = 16
A_STREAM = 500


def streams(folder: Path, tokens: int) -> None:
    """Write Parquet of streams of 500 tokens, 50 ms apart on average, now and then a second late."""
    random = np.random.default_rng(7)
    for number in range(FILES):
        rows = max(1, tokens // FILES // A_STREAM)
        gaps = random.exponential(50e6, (rows, A_STREAM)) + (random.random((rows, A_STREAM)) < 0.005) * 1e9
        commits = T0_NS + random.integers(0, 600_000_000_000, rows)
        times = commits[:, None] + gaps.cumsum(axis=1).astype(np.int64)
        same: dict[str, Any] = {
            **dict.fromkeys(("model", "instance"), "m"),
            **dict.fromkeys(("complete",), True),
            **dict.fromkeys(("exact_resume", "foreign"), False),
        }
        same |= {"choice": 0, "measured_at": "client", "outcome": "completed", "token_basis": "exact"}
        same |= {"coverage": 1.0, "known_tokens": A_STREAM}
        cells: dict[str, Any] = {name: [value] * rows for name, value in same.items()}
        cells |= {
            "trace_id": [random.bytes(16) for _ in range(rows)],
            "span_id": [random.bytes(8) for _ in range(rows)],
            "commit_ns": commits,
            "end_ns": times[:, -1],
            "known_until_ns": times[:, -1],
            "times_ns": pa.ListArray.from_arrays(np.arange(0, rows * A_STREAM + 1, A_STREAM), times.ravel()),
        }
        arrays = [
            cells[item.name].cast(item.type) if item.name == "times_ns"
            else pa.array(cells.get(item.name, [None] * rows), item.type)
            for item in STREAMS
        ]  # fmt: skip
        pq.write_table(pa.table(arrays, schema=STREAMS), folder / f"{number:02}.parquet", row_group_size=2000)


def journals(folder: Path, source: Path, tokens: int) -> None:
    """Write the same streams as journals, segments of 50 tokens, until there are so many tokens."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.otlp import export, stream_spans

    done = number = 0
    for file in sorted(source.iterdir()):
        with (folder / f"{file.stem}.otlp").open("wb") as out:
            for row in pq.read_table(file, columns=["commit_ns", "end_ns", "times_ns"]).to_pylist():
                number += 1
                spans = stream_spans(
                    row["times_ns"],
                    request=number,
                    commit_ns=row["commit_ns"],
                    end_ns=row["end_ns"],
                    segment_tokens=50,
                )
                out.write(frame(export(*spans).SerializeToString(), row["end_ns"]))
                done += len(row["times_ns"])
                if number % max(1, tokens // A_STREAM // FILES) == 0:
                    break


def tokens_of(folder: Path) -> int:
    return sum(len(batch) * A_STREAM for file in folder.iterdir() for batch in pq.ParquetFile(file).iter_batches())


def best(run: Callable[[], object], runs: int) -> float:
    run()
    took = []
    for _ in range(runs):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return min(took)


def one_process(parquet: Path, journal: Path, runs: int) -> dict[str, float]:
    classes = load_slo(None)

    def batches() -> Any:
        for file in sorted(parquet.iterdir()):
            yield from pq.ParquetFile(file).iter_batches(2000)

    def requests() -> None:
        for batch in batches():
            judge_batch(batch, classes)

    def windows() -> None:
        parts = (window_partials(one, judge_batch(one, classes), classes, WINDOW_NS, LATENESS_NS) for one in batches())
        merge_partials(parts, WINDOW_NS)

    def recorded() -> None:
        for batch in load_streams(*sorted(journal.iterdir())):
            judge_batch(batch, classes)

    return {"requests": best(requests, runs), "windows": best(windows, runs), "journal": best(recorded, runs)}


def on_spark(workers: int, parquet: Path, journal: Path, runs: int) -> dict[str, float]:
    """Run in a process of its own, since a JVM has one Spark in its life."""
    from pyspark.sql import SparkSession

    from otel_llm.audit import spark

    session = (
        SparkSession.builder.master(f"local-cluster[{workers},1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "1g")
        .config("spark.sql.shuffle.partitions", str(2 * workers))
        .config("spark.sql.files.maxPartitionBytes", str(16 * 2**20))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "2000")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    found = spark.judge(spark.read_streams(session, str(parquet)))
    recorded = spark.judge(spark.read_recordings(session, str(journal)).streams)

    def through(frame: Any) -> Callable[[], object]:
        return lambda: frame.write.format("noop").mode("overwrite").save()

    took = {
        "requests": best(through(found.requests), runs),
        "windows": best(through(found.windows), runs),
        "journal": best(through(recorded.requests), runs),
    }
    session.stop()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError:
        print("no pyspark here: make spark-env, then .venv-spark/bin/python benchmarks/spark_audit.py")
        return
    if given.workers is not None:
        took = on_spark(given.workers, given.folder / "parquet", given.folder / "journal", given.runs)
        print("took", *(f"{name}={seconds}" for name, seconds in took.items()))
        return
    folder = Path(tempfile.mkdtemp(prefix="otel-llm-spark-"))
    try:
        report(folder, given.tokens, given.runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(folder: Path, tokens: int, runs: int) -> None:
    parquet, journal = folder / "parquet", folder / "journal"
    parquet.mkdir()
    journal.mkdir()
    streams(parquet, tokens)
    journals(journal, parquet, tokens // 10)
    tokens = tokens_of(parquet)
    in_journal = sum(
        len(times) for batch in load_streams(*sorted(journal.iterdir())) for times in batch.column("times_ns")
    )
    lines = {"one process": one_process(parquet, journal, runs)}
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    for workers in (1, 2):
        command = [sys.executable, __file__, "--workers", str(workers), "--folder", str(folder), "--runs", str(runs)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        words = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("took ")]
        if not words:
            sys.exit(done.stderr[-3000:])
        pairs = (word.partition("=") for word in words[-1])
        lines[f"{workers} worker{'s' * (workers > 1)}"] = {name: float(seconds) for name, _, seconds in pairs}
    print(f"{tokens / 1e6:.0f} M tokens in Parquet, {in_journal / 1e6:.1f} M in journals; million tokens/s")
    print(f"{'':14}{'requests':>10}{'windows':>10}{'journal':>10}")
    for name, took in lines.items():
        rates = [tokens / took["requests"], tokens / took["windows"], in_journal / took["journal"]]
        print(f"{name:14}" + "".join(f"{rate / 1e6:10.2f}" for rate in rates))


if __name__ == "__main__":
    main()
