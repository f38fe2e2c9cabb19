"""The rule engine: states, budgets and decisions of stream and scope rules."""

from otel_llm.rules.engine.rule_engine import *  # noqa: F403
