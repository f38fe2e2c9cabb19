"""Parse any received or recorded format of a stream to plain values.

A parser of a new result file goes into `recordings` (results of benchmark tools: `recordings/bench`). The docstring of
`recordings` lists all steps.

From top to bottom, each package imports only those below it:

- `files`, `input_paths`: read a path, find the files that paths stand for; `rows`: a row of `--requests`.
- `recordings`: the formats of recordings (databases, query APIs, CSV, Parquet, benchmark results) and their table.
- `otlp`: export requests, protobuf or JSON, to records. `assemble`: records to streams and requests.
- `foreign`: the inference spans of other instrumentations.
- `spans`: the parts of one span, checked. `io`: files as bytes, lines, JSON values and journal records.
- `batch`, `records`: the contents of an export request, as plain values.
"""
