"""A rule that moves a stream, for the tests of migrations."""

RULES = """
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: R
    when: {when!r}
    {more}
    actions:
    - migrate: {{to: least_load, only_if: 'exact_resume'}}
      mode: enforce
      budget: {{{budget}}}
    - alert: {{name: A}}
"""
