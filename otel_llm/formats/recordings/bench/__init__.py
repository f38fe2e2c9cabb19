"""Parsers of benchmark tools' result files, a module each; `measured` and `replies` are shared by them.

The shape of the file decides how a parser takes it apart:

- JSON records, a request each (lines, an array, indented): `json_records`, as in `aiperf`;
- one JSON document with requests inside: `json_values.items`, as in `guidellm`;
- an object of parallel arrays: `measured.run_streams`, as in `vllm_bench`.

Each request becomes a `measured.MeasuredRequest`; its method `timed` makes the stream of token times, `untimed` one
without. `replies` finds the tokens if the file holds the events of the reply. A request that cannot be used raises
`EntryError`, and the parser counts it (`Skipped.bad`). The parser also counts the anomalies of the streams that it
yields (`Skipped.anomaly`): `clock_unanchored`, `no_start_times`, `end_unknown`, `token_times_not_kept`,
`outcome_unknown`; `run_streams` counts the clock and `end_unknown` itself. Requests that the tool leaves out of its
figures are left out and counted (`warmup`, `cooldown`), those that it counted and did not keep are a sample
(`Skipped.not_in_sample`). A parser of files with several runs checks before each (`Skipped.wants_run`) and counts it
(`Skipped.end_run`). `summaries` names the files that hold no request. `docs/audit-formats.md` explains them, and the
token basis (`exact`, `chunk`, `estimated`).
"""
