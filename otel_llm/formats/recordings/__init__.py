"""The forms of recordings, a module each, and the table of all forms.

To add a reader for a new result file:

1. Write a module with two functions, as `form.py` describes them: `sniff` tells by a file's first bytes whether it
   holds the form, `read` yields its contents. A reader of a benchmark tool's results goes into `bench`, whose docstring
   lists the shared functions.
2. Add it to `known_forms` in `form_table.py`.
3. Add it to an import contract in `pyproject.toml`: a module in `bench` to "The parser of one benchmark tool knows no
   other's" (`make lint` does not report a missing one), any other to "Forms of recordings" (`make lint` reports it).
4. A new anomaly or reason to skip needs its meaning in `_MEANINGS` of `otel_llm/audit/coverage.py`.
5. Test it. For `bench`, write the form from known requests in `tests/support/formats/bench_files.py` and add that
   function to `WRITERS`: the tests in `tests/formats/recordings/bench` then compare, cut and spoil it. A file that the
   tool wrote goes into `fixtures` there.
6. Describe it in `docs/audit-forms.md` (for `bench` both tables: flags, and what each can say) and in `CHANGELOG.md`.
"""
