"""Follow streams in flight and decide by rules, without I/O and without a clock: the collector and the relay use it."""
