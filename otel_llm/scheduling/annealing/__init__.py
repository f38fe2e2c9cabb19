"""SLO-aware annealing: the order and the batches of waiting requests, found without I/O (arXiv 2504.14966)."""

from otel_llm.scheduling.annealing.jobs import Job, Plan
from otel_llm.scheduling.annealing.optimum import exact
from otel_llm.scheduling.annealing.prediction import Predictor
from otel_llm.scheduling.annealing.schedule import evaluate, in_order
from otel_llm.scheduling.annealing.search import SCHEDULES, Cooling, anneal

__all__ = [
    "SCHEDULES",
    "Cooling",
    "Job",
    "Plan",
    "Predictor",
    "anneal",
    "evaluate",
    "exact",
    "in_order",
]
