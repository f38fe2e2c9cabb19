"""The statistics of a capacity search, without I/O and without a clock."""
