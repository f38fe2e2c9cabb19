"""The expression language of rules: facts, syntax, types, compilation, crossing times, satisfiability.

A condition goes through `tokens`, `parser`, `types` and `compile`; `condition` puts them together. `facts` is the table
of facts: a new fact of a stream is declared there and gets its value in `READ` of `snapshot`; the docstring of `facts`
has the other steps. `crossings` finds when a condition flips, `satisfiable` and `intervals` whether it can hold at all.
"""
