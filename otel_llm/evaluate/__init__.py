"""The evaluation of streams in flight, and of rules on them, without I/O and without a clock."""
