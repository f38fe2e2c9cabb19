"""Rules over what readers see: their language, files, engine and decisions, and the SLO classes.

- `language`: expressions over facts. A new fact is declared in `language/facts.py`, which lists the steps.
- `files`: rule files and SLO files, read and checked. `lint`: warnings about valid rules.
- `engine`: the states of rules on streams, instances and classes. `decisions`: their records and files.
- `prometheus`: Prometheus rules made of SLO classes. `docs`: pages generated from the tables above.
"""
