"""Read any received or recorded form of a stream to plain values.

A reader of a new result file goes into `formats` (results of benchmark tools: `formats/bench`). The docstring of
`formats` lists all steps.

From top to bottom, each package imports only those below it:

- `files`, `input_paths`: read a path, find the files that paths stand for; `rows`: a row of `--requests`.
- `formats`: the forms of recordings (databases, query APIs, CSV, Parquet, benchmark results) and the table of them.
- `otlp`: export requests, protobuf or JSON, to records. `assemble`: records to streams and requests.
- `foreign`: the inference spans of other instrumentations.
- `spans`: the parts of one span, checked. `io`: files as bytes, lines, JSON values and journal records.
- `batch`, `segment_columns`, `records`: the contents of an export request, as plain values.
"""
