"""Placement: the backend of each request, decided without I/O."""
