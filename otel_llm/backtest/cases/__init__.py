"""Unit tests of rules: token-arrival scripts through the collector's own evaluator, on virtual time."""
