"""Decisions, their records and files."""
