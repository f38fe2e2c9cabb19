"""Scheduling: placement and profiles, decided without I/O."""

from otel_llm.scheduling.profiles.profile_file import load_profile

__all__ = ["load_profile"]
