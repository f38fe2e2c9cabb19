"""The expression language: tokens, syntax, types, facts, crossing times, satisfiability."""
