"""Owned requests that wait for a slot on a backend, and the order in which they are released."""
