"""What the tests ask of Spark, in one session, since starting one takes long. Runs in `.venv-spark`: no test package.

    spark_job.py JOURNAL STREAMS PAGE OUT

JOURNAL is a folder of journal files, STREAMS one of Parquet files. OUT gets a folder for each way of judging them,
with `requests`, `windows` and `summary.json`. The Python of PAGE is run, too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from otel_llm.audit import spark
from otel_llm.audit.input.stream_batch import STREAMS
from otel_llm.audit.spark.frames import through

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

WINDOW = "10s"


def session(master: str) -> SparkSession:
    return (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", "1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.coalescePartitions.enabled", "false")  # little data, and yet work for both
        .config("spark.sql.files.maxPartitionBytes", "20000")
        .config("spark.sql.files.openCostInBytes", "20000")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "600s")
        .getOrCreate()
    )


def write(found: spark.Judged, out: Path) -> None:
    found.requests.write.parquet(str(out / "requests"))
    found.windows.write.parquet(str(out / "windows"))
    (out / "summary.json").write_text(json.dumps(found.summary()))


def held_up(streams: DataFrame, meeting: Path) -> DataFrame:
    """Return streams that come no further than here until somebody has written `go`: each task says who runs it."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
        executor = daemon.rpartition(")")[2].split()[1]  # the parent of the workers' parent
        (meeting / f"executor-{executor}").touch()
        while not (meeting / "go").exists():
            time.sleep(0.05)
        yield from batches

    return through(streams, wait, STREAMS)


def kill_one(meeting: Path) -> None:
    """Wait until two executors are at work, kill one of them as a broken machine would, and let the other go on."""
    while len(executors := sorted(meeting.glob("executor-*"))) < 2:
        time.sleep(0.05)
    os.kill(int(executors[0].name.removeprefix("executor-")), signal.SIGKILL)
    (meeting / "go").touch()


def killed(spark_session: SparkSession, journal: Path, out: Path) -> None:
    """Judge a journal on two workers; one dies when all is decoded and half of it is shuffled to it."""
    meeting = out / "meeting"
    meeting.mkdir(parents=True)
    killer = threading.Thread(target=kill_one, args=(meeting,), daemon=True)
    killer.start()
    recordings = spark.read_recordings(spark_session, str(journal))
    streams = recordings.streams.persist()
    found = spark.judge(held_up(streams, meeting), window=WINDOW)
    found.requests.write.parquet(str(out / "requests"))
    killer.join()
    rest = spark.judge(streams, window=WINDOW)
    rest.windows.write.parquet(str(out / "windows"))
    (out / "summary.json").write_text(json.dumps(rest.summary()))
    notes = [row.asDict() for row in recordings.notes.collect()]
    (out / "notes.json").write_text(json.dumps(notes))


def grow(kind: str, spark_session: SparkSession, files: list[Path], out: Path) -> None:
    """Follow a folder into which files come in two parts; the first query dies before it can say that it is done."""
    growing, into = out / "growing", out / "followed"
    growing.mkdir(parents=True)

    def query() -> None:
        streams = (
            spark.follow_recordings(spark_session, str(growing), patience="1 minute")
            if kind == "journal"
            else spark.follow_streams(spark_session, str(growing))
        )
        spark.follow(streams, str(into), window=WINDOW).awaitTermination()

    half = len(files) // 2
    for part in (files[:half], files[half:]):
        for file in part:
            shutil.copy(file, growing / f".{file.name}")
            (growing / f".{file.name}").rename(growing / file.name)
        query()
        if part == files[:half]:  # all was written, and the last word of it lost
            commits = into / "checkpoint" / "commits"
            last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
            last.unlink()
            (commits / f".{last.name}.crc").unlink(missing_ok=True)
            query()
    write(spark.followed(spark_session, str(into), window=WINDOW), out)
    try:
        spark.followed(spark_session, str(into), window="1m")
    except ValueError as error:
        (out / "refusal.txt").write_text(str(error))


def command(streams: Path, out: Path) -> None:
    """Judge streams in Parquet by the command; it takes the session that there is."""
    from otel_llm.audit.spark.command import audit

    out.mkdir(parents=True)
    reported = io.StringIO()
    with contextlib.redirect_stdout(reported):
        arguments = [streams, "--from", "streams", "--window", WINDOW]
        outputs = ["--requests", out / "requests", "--windows", out / "windows"]
        audit.main([str(one) for one in (*arguments, *outputs)], standalone_mode=False)
    (out / "summary.json").write_text(reported.getvalue())


def documented(page: Path) -> None:
    """Run the Python of a page where this program was started, beside a folder `journal`."""
    code = "\n".join(re.findall(r"^```py\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    exec(compile(code, str(page), "exec"), {"__name__": "page"})


def main(journal: Path, streams: Path, page: Path, out: Path) -> None:
    def say(what: str) -> None:
        print(f"{time.monotonic() - began:.1f} s: {what}", flush=True)

    began = time.monotonic()
    one = session("local-cluster[2,1,1024]")
    one.sparkContext.setLogLevel("ERROR")
    say("two workers")
    killed(one, journal, out / "killed")
    say("a journal, and one of them killed")
    command(streams, out / "parquet")
    say("streams in Parquet, by the command")
    for kind, folder in (("journal", journal), ("streams", streams)):
        grow(kind, one, sorted(path for path in folder.iterdir() if path.suffix != ".txt"), out / f"growing-{kind}")
        say(f"a folder of {kind} that grows")
    documented(page)
    say("the page")
    one.stop()


if __name__ == "__main__":
    arguments: list[Any] = [Path(argument) for argument in sys.argv[1:]]
    main(*arguments)
