"""Many recorded requests judged at once, as arrays."""
