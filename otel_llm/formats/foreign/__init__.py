"""Inference spans of other instrumentations: their token times, names and statements."""
