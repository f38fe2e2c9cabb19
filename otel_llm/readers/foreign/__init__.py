"""Inference spans of other instrumentations: their token times, their names, what they state."""
