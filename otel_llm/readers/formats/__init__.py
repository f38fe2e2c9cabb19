"""The forms of recordings, a module each, and the table of all forms.

To add a reader for a new result file: write a module with two functions, as `form.py` describes them (`sniff` tells by
a file's first bytes whether it holds the form, `read` yields its contents), and add it to `known_forms` in
`form_table.py`. Readers of benchmark tools' results are in `bench`; `bench/measured.py` has what they share.
"""
