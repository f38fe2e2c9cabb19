"""Read a reply's chunks and cut them into numbered segments of each choice. No lock, no clock, no I/O."""
