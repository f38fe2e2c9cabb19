"""Owned requests that wait for a place on a backend, and the order in which they are released."""
