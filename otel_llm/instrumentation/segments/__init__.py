"""What a reply's chunks carry, cut into numbered segments of each choice. No lock, no clock, no I/O."""
