"""Where findings of the evaluator go: counters, files, the console, the tables of streams in flight."""
