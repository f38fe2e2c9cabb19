"""Inference spans of other vocabularies."""
