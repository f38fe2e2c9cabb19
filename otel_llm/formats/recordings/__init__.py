"""The formats of recordings, a module each, and the table of all formats.

To add a parser for a new result file:

1. Write a module with two functions, as `recording_format.py` describes them: `sniff` tells by a file's first bytes
   whether it holds the format, `read` yields its contents. A parser of a benchmark tool's results goes into `bench`,
   whose docstring lists the shared functions.
2. Add it to `known_formats` in `format_table.py`.
3. Add it to an import contract in `pyproject.toml`: a module in `bench` to "The parser of one benchmark tool knows no
   other's" (`make lint` does not report a missing one), any other to "Formats of recordings" (`make lint` reports it).
4. A new anomaly or reason to skip needs its meaning in `_MEANINGS` of `otel_llm/audit/coverage.py`.
5. Test it. For `bench`, write the format from known requests in `tests/support/formats/bench_files.py` and add that
   function to `WRITERS`: the tests in `tests/formats/recordings/bench` then compare, cut and spoil it. A file that the
   tool wrote goes into `fixtures` there.
6. Describe it in `docs/audit-formats.md` (for `bench` both tables: flags, and what each can say) and in `CHANGELOG.md`.
"""
