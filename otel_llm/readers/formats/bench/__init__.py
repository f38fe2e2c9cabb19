"""Readers of benchmark tools' result files, a module each; `measured` and `replies` are shared by them."""
