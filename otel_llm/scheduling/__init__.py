"""Placement and order of requests, decided without I/O."""

from otel_llm.scheduling.annealing import Job, Plan, anneal, exact

__all__ = ["Job", "Plan", "anneal", "exact"]
