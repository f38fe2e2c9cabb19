"""The expression language of rules: facts, syntax, types, compilation, crossing times, satisfiability.

A condition goes through `tokens`, `parser`, `types` and `compile`; `condition` puts them together. `facts` is the table
of facts; its docstring has the steps to add one. `snapshot` gives the facts of a stream their values. `crossings` finds
when a condition flips, `satisfiable` and `intervals` whether it can hold at all.
"""
