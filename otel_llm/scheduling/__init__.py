"""Scheduling: placement, profiles, the order of requests; decided without I/O, but for the files of profiles."""

from otel_llm.scheduling.annealing import Job, Plan, anneal, exact
from otel_llm.scheduling.profiles.profile_file import load_profile

__all__ = ["Job", "Plan", "anneal", "exact", "load_profile"]
