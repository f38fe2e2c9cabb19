"""Convert between our batches and Spark's, where every column is nullable and lists have Spark's names."""

from __future__ import annotations

import pyarrow as pa


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of `schema`, in its order and of its types, as they are between two steps.

    Raises:
        ValueError: a column is missing, has nulls if it must not, or values that do not fit its type.
    """
    arrays, fields = [], []
    for item in schema:
        place = batch.schema.get_field_index(item.name)
        if place < 0:
            raise ValueError(f"no column {item.name!r} among {', '.join(batch.schema.names)}")
        column, kind = batch.column(place), nullable(item.type)
        if not item.nullable and column.null_count:
            raise ValueError(f"{column.null_count} nulls in the column {item.name!r}, which must be known")
        try:
            arrays.append(column if column.type == kind else column.cast(kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"the column {item.name!r} is {column.type}, not {item.type}: {error}") from error
        fields.append(pa.field(item.name, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def nullable(kind: pa.DataType) -> pa.DataType:
    """Return a type with everything in it nullable, and lists named as Spark names them."""
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", nullable(kind.value_type)))
    if pa.types.is_struct(kind):
        inner = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([pa.field(item.name, nullable(item.type)) for item in inner])
    return kind
