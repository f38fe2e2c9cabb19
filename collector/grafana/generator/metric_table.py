"""The one table of metrics: what a collector and a relay serve, as their own code declares it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import yaml

from otel_llm.collector.telemetry.self_metrics import OWN_UNITS, DecisionLatency, own_families, process_families
from otel_llm.live.user_metrics import USER_UNITS, UserMetrics
from otel_llm.relay.backends.backends import Backends
from otel_llm.relay.deciding.decision_loop import rule_families
from otel_llm.relay.metrics import RelayMetrics
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.rules.prometheus.class_rules import prometheus_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

ENDINGS: Final = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
OF_PROMETHEUS: Final = {"up", "ALERTS"}
"""Series that Prometheus makes itself."""


@dataclass(frozen=True, slots=True)
class Exposed:
    """A family of metrics; `unit` in UCUM, "" if the table has none."""

    family: str
    kind: str
    help: str
    unit: str


def families() -> Iterator[Metric]:
    """Yield every family that a collector or a relay serves, without samples."""
    users = UserMetrics(by_instance=True)
    yield from chain(users.families(), users.gauges({}), own_families({}), DecisionLatency().families())
    backends = Backends([], lambda: 0.0, 1.0)
    yield from chain(RelayMetrics().families(backends, 0, 0), rule_families({}, {}), process_families())


def _table() -> Iterator[tuple[str, Exposed]]:
    units = {**USER_UNITS, **OWN_UNITS}
    for one in families():
        exposed = Exposed(one.name, one.type, one.documentation, units.get(one.name, ""))
        for ending in ENDINGS[one.type]:
            yield one.name + ending, exposed


def _records() -> set[str]:
    groups = yaml.safe_load(prometheus_rules(load_slo()).text)["groups"]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


METRICS: Final = dict(_table())
"""What is served, by the name of a series."""
RECORDS: Final = _records()
"""What the rules of `otel-llm rules prometheus` record for the classes that ship."""


def series(name: str, *matchers: str) -> str:
    """Return the selector of a series.

    Raises:
        KeyError: no program serves it, no rule records it.
    """
    if name not in METRICS and name not in RECORDS and name not in OF_PROMETHEUS:
        raise KeyError(f"no metric is called {name}")
    return f"{name}{{{', '.join(matchers)}}}" if matchers else name


def help_of(name: str) -> str:
    """Return the help text of a series that is served."""
    return METRICS[name].help
