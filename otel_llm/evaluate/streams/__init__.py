"""The state of the streams in flight: as objects, and as columns that a batch of segments moves in one pass."""
