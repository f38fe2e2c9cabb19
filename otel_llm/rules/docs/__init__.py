"""Pages of the docs that are generated from the code's tables."""
