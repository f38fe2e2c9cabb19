"""Profiles: how long an iteration of an engine lasts."""

from otel_llm.scheduling.profiles.profile import Profile
from otel_llm.scheduling.profiles.profile_file import load_profile, shipped_profiles

__all__ = ["Profile", "load_profile", "shipped_profiles"]
