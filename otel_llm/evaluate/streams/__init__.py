"""The state of streams in flight: as objects, and as columns that a batch of segments updates in one pass."""
