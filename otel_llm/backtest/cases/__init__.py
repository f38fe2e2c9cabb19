"""Unit tests of rules: scripts of token arrivals, run by the collector's own evaluator on virtual time."""
