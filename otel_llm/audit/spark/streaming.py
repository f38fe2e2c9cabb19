"""The same audit over a growing folder, by Structured Streaming: every request is judged once, across restarts.

A request whose segments are in different files is held in Spark's state until its request span and all segments that
it counts are there, or until nothing of it was received for so long. The results of a micro-batch are written under
the batch's number, which its repetition after a crash overwrites: nothing is counted twice.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import pandas as pd
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import BinaryType, BooleanType, LongType, StructField, StructType

from otel_llm import semconv
from otel_llm.audit.input.stream_batch import STREAMS
from otel_llm.audit.kernel.judge_batch import JUDGED
from otel_llm.audit.kernel.window_totals import PARTIALS
from otel_llm.audit.spark import decoding
from otel_llm.audit.spark.batch import Judged, judge_by, recordings_of, settings
from otel_llm.audit.spark.frames import spark_schema, through
from otel_llm.formats.assemble.packed_records import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.state import GroupState

    from otel_llm.formats.batch import Batch
    from otel_llm.formats.records import RequestKey
    from otel_llm.slo.classes import SloClasses

REQUESTS: Final = "requests"
PARTS: Final = "partials"
SETTINGS: Final = "settings"
CHECKPOINT: Final = "checkpoint"
"""The contents of the folder of `follow`."""

_FILES: Final = "path string, modificationTime timestamp, length bigint, content binary"
_HELD: Final = pa.schema([decoding.RECORDS.field(name) for name in (*decoding.KEY, "kind", "record")])
_STATE: Final = StructType(
    [StructField("frames", BinaryType()), StructField("judged", BooleanType()), StructField("seen_ms", LongType())]
)


def follow_streams(session: SparkSession, folder: str, *, most_files: int = 100) -> DataFrame:
    """Return the streams in a folder of Parquet files of STREAMS, future ones included; so many files at a time."""
    source = session.readStream.schema(spark_schema(STREAMS)).option("maxFilesPerTrigger", most_files)
    return source.parquet(folder)


def follow_recordings(
    session: SparkSession, folder: str, *, patience: str = "10 minutes", most_files: int = 100, glob: str = "*"
) -> DataFrame:
    """Return the streams in a folder of recordings, future ones included, each once it is complete.

    A file must be complete when it gets its name (an object store does that; else move it there): a journal's file once
    it is closed. `glob` chooses among their names. An incomplete request is given as it is once the recordings are
    `patience` (of Spark's, as `10 minutes`) past its last record; later records are left out. Past is by the time of
    receipt, by the sender's clock only if a file has none.
    """
    source = session.readStream.format("binaryFile").schema(_FILES).option("maxFilesPerTrigger", most_files)
    records = recordings_of(source.option("pathGlobFilter", glob).load(folder)).records.where("kind != 'note'")
    # A complete stream waits for nothing, and its clock may be any.
    seen = f.when(f.col("kind") == "span", f.timestamp_micros((f.col("seen_ns") / 1000).cast("long")))
    timed = records.withColumn("seen", seen).withWatermark("seen", patience)
    held = timed.groupBy(*decoding.KEY).applyInPandasWithState(
        _hold, spark_schema(_HELD), _STATE, "append", GroupStateTimeout.EventTimeTimeout
    )
    return through(held, decoding.assemble, STREAMS)


def _hold(key: RequestKey, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Yield the records of a request together once it is complete or has timed out, as `decoding.assemble` takes them.

    Judged requests are remembered for as long, so that a repetition is not judged again.
    """
    held, judged, seen_ms = state.get if state.exists else (b"", False, 0)
    if state.hasTimedOut:
        state.remove()
        if not judged:
            yield _frame_of(key, "span", [bytes(held)])
        return
    every = pd.concat(list(frames)).sort_values(["file", "number"])
    streams = every[every["kind"] == "stream"]
    if len(streams):
        yield _frame_of(key, "stream", streams["record"].tolist())
    spans = every[every["kind"] == "span"]
    if not len(spans):
        return
    seen_ms = max(seen_ms, int(spans["seen_ns"].max()) // 1_000_000)
    if not judged:
        held = b"".join([bytes(held), *spans["record"].tolist()])
        if _is_complete(unpack(key, held)):
            yield _frame_of(key, "span", [held])
            held, judged = b"", True
    state.update((held, judged, seen_ms))
    state.setTimeoutTimestamp(max(seen_ms, state.getCurrentWatermarkMs() + 1))


def _is_complete(batch: Batch) -> bool:
    """Tell whether the request span is there, and every segment that it counts."""
    if not batch.requests:
        return False
    declared = batch.requests[0].attributes.get(semconv.SEGMENTS)
    return isinstance(declared, int) and len({segment.key for segment in batch.segments}) >= declared


def _frame_of(key: RequestKey, kind: str, records: list[bytes]) -> pd.DataFrame:
    trace_id, span_id, tenant = key
    cells: tuple[object, ...] = (bytes(trace_id), bytes(span_id), tenant, kind)
    same = {name: [cell] * len(records) for name, cell in zip((*decoding.KEY, "kind"), cells, strict=True)}
    return pd.DataFrame({**same, "record": records})


def follow(
    streams: DataFrame,
    out: str,
    *,
    slo: str | Path | SloClasses | None = None,
    class_name: str | None = None,
    window: str | float = "10s",
    every: str | None = None,
) -> StreamingQuery:
    """Start the audit of followed streams into the folder `out`, and return the query.

    It takes what is there and ends, or looks again `every` so often (of Spark's, as `10 seconds`). Started again with
    the same folder it continues. `followed` reads its results; its checkpoint is in there too. The other parameters are
    those of `judge`.

    Raises:
        ValueError: the folder has the results of other classes or of another window; and as `judge`.
    """
    classes, window_ns = settings(slo, class_name, window)
    _agree(streams.sparkSession, out, classes, window_ns)

    def write(batch: DataFrame, number: int) -> None:
        kept = batch.persist()
        judged = judge_by(kept, classes, window_ns)
        judged.requests.write.mode("overwrite").parquet(f"{out}/{REQUESTS}/batch={number}")
        judged.partials.write.mode("overwrite").parquet(f"{out}/{PARTS}/batch={number}")
        kept.unpersist()

    writer = streams.writeStream.foreachBatch(write).option("checkpointLocation", f"{out}/{CHECKPOINT}")
    trigger = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
    return trigger.start()


def followed(
    session: SparkSession,
    out: str,
    *,
    slo: str | Path | SloClasses | None = None,
    class_name: str | None = None,
    window: str | float = "10s",
) -> Judged:
    """Return the results of `follow` in its folder so far; the other parameters as they were given there.

    Raises:
        ValueError: they were different; and as `judge`.
    """
    classes, window_ns = settings(slo, class_name, window)
    _agree(session, out, classes, window_ns)
    requests, parts = (
        session.read.schema(spark_schema(schema)).parquet(f"{out}/{name}").select(schema.names)
        for name, schema in ((REQUESTS, JUDGED), (PARTS, PARTIALS))
    )
    return Judged(requests, parts, classes, window_ns)


def _agree(session: SparkSession, out: str, classes: SloClasses, window_ns: int) -> None:
    """Record how a folder's requests are judged; raises ValueError if it was otherwise so far."""
    mine = {"classes": repr(classes), "window_ns": str(window_ns)}
    with contextlib.suppress(AnalysisException):  # nothing is there yet
        before = session.read.schema("classes string, window_ns string").json(f"{out}/{SETTINGS}").first()
        if before is not None and before.asDict() != mine:
            what = " and ".join(name for name in mine if before[name] != mine[name])
            raise ValueError(f"{out}: judged by other {what} so far; use the same, or another folder")
        return
    session.createDataFrame([mine], "classes string, window_ns string").write.json(f"{out}/{SETTINGS}")
