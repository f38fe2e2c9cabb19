"""The pages of the docs that are drawn from the code's tables."""
