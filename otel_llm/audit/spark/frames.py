"""Arrow schemas as Spark's, and functions from batch to batch as Spark wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from otel_llm.audit.spark.shapes import nullable, shaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    Step: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def spark_schema(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as Spark's, every column nullable, as those of files always are."""
    return from_arrow_schema(pa.schema([pa.field(item.name, nullable(item.type)) for item in schema]))


def through(frame: DataFrame, step: Step, schema: pa.Schema) -> DataFrame:
    """Return `step` applied to each partition of a frame: Arrow batches in, Arrow batches of `schema` out."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in step(batches):
            yield shaped(batch, schema)

    return frame.mapInArrow(run, spark_schema(schema))
