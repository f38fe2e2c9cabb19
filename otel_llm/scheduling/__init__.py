"""Scheduling: placement, decided without I/O, and profiles of engines."""

from otel_llm.scheduling.profiles.profile_file import load_profile

__all__ = ["load_profile"]
