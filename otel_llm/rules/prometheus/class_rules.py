"""Prometheus rules of SLO classes: recordings and alerts over the counters of `/metrics`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from otel_llm.config.durations import exact
from otel_llm.rules.prometheus.burn_rates import Promise, attainment_counters, fluidity_counters
from otel_llm.rules.prometheus.own_rules import collector_group, readers_group
from otel_llm.rules.prometheus.promql import decimal, rule_file
from otel_llm.slo.metrics import FLUIDITY_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from otel_llm.slo.classes import SloClass, SloClasses

LEAST_REQUESTS: Final = 30
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_OURS: Final = (
    *("slo_class", "model", "measured_at", "outcome", "met", "le", "reason", "name", "severity"),
    *("sloth_id", "sloth_service", "sloth_slo", "sloth_window", "sloth_mode", "sloth_objective", "sloth_spec"),
    *("sloth_version", "sloth_severity"),
)


class UnwritableError(ValueError):
    """A name or a setting cannot stand in Prometheus rules; the text says what to write."""


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """How the collectors are scraped.

    Args:
        job: the name of the scrape job.
        service: Sloth's name of the whole.
        match: labels that every selector asks for and every record has, where one Prometheus scrapes several fleets.
        least_requests: an alert on a ratio needs at least so many requests in its longer window.

    Raises:
        UnwritableError: a label cannot be matched.
    """

    job: str = "otel-llm"
    service: str = "otel-llm"
    match: tuple[tuple[str, str], ...] = ()
    least_requests: int = LEAST_REQUESTS

    def __post_init__(self) -> None:
        names = [name for name, _ in self.match]
        for name, value in self.match:
            if not _LABEL.fullmatch(name) or name.startswith("__"):
                raise UnwritableError(f"--match: {name!r} is no label: write NAME=VALUE, as env=production")
            if name == "job":
                raise UnwritableError("the job is named by --job, not by --match")
            if name in _OURS:
                raise UnwritableError(f"{name} is a label of otel-llm's own: --match is for labels of the target")
            if names.count(name) > 1:
                raise UnwritableError(f"{name} is asked for twice")
            if not value:
                raise UnwritableError(f"--match {name}=: it needs a value: an empty one is an absent label")
            _writable(value, f"the value of {name}")
        for text, what in ((self.job, "the job"), (self.service, "the service")):
            if not text:
                raise UnwritableError(f"{what} needs a name")
            _writable(text, what)


@dataclass(frozen=True, slots=True)
class PrometheusRules:
    """The text of a rule file, and one line for each thing that it leaves out, with the reason."""

    text: str
    notes: tuple[str, ...]


def prometheus_rules(classes: SloClasses, settings: PrometheusSettings | None = None) -> PrometheusRules:
    """Return the Prometheus rules of classes; the same classes and settings give the same bytes.

    Raises UnwritableError for a class whose name cannot be a label.
    """
    settings = settings or PrometheusSettings()
    match = dict(settings.match)
    notes: list[str] = []
    groups = [readers_group(match)]
    for slo in classes.classes:
        _writable(slo.name, "a class's name")
        promises = list(_promises(slo, settings, notes))
        if not promises and slo.objective.attainment is None:
            notes.append(f"class {_shown(slo.name)} has no objective that can be alerted on")
        for promise in promises:
            notes.extend(_never(promise))
            groups.extend(promise.groups())
    groups.append(collector_group(settings.job, match))
    head = ["Written by `otel-llm rules prometheus` from the SLO classes: write it anew, do not edit it."]
    return PrometheusRules(rule_file(groups, head + notes), tuple(notes))


def _promises(slo: SloClass, settings: PrometheusSettings, notes: list[str]) -> Iterator[Promise]:
    objective = slo.objective
    if objective.attainment is not None:
        counters = attainment_counters(slo.name, settings.match)
        yield _promise(slo, settings, "attainment", objective.attainment, counters, "deadlines missed")
    index, share = objective.fluidity_index, objective.share
    if index is None or share is None:
        return
    # A bucket counts values up to its bound: of the bounds, only the objective itself separates below from above,
    # except for requests that are exactly on it. All requests are up to 1.
    bound = next((bound for bound in FLUIDITY_BUCKETS if exact(bound) == index), None)
    if bound is None or bound == 1:
        why = "every request is up to it" if bound else "its histogram has no such bound"
        notes.append(f"class {_shown(slo.name)}: no rule for a fluidity index of {decimal(index)}: {why}")
        return
    counters = fluidity_counters(slo.name, settings.match, bound)
    yield _promise(slo, settings, "fluidity", share, counters, f"fluidity index up to {decimal(index)}")


def _promise(
    slo: SloClass,
    settings: PrometheusSettings,
    kind: Literal["attainment", "fluidity"],
    objective: Fraction,
    counters: tuple[str, str],
    words: str,
) -> Promise:
    return Promise(
        slo_class=slo.name,
        kind=kind,
        objective=objective,
        errors=counters[0],
        requests=counters[1],
        service=settings.service,
        match=settings.match,
        least=settings.least_requests,
        words=words,
    )


def _never(promise: Promise) -> Iterator[str]:
    for pair in promise.dead():
        yield (
            f"class {_shown(promise.slo_class)}: an objective of {decimal(promise.objective)} ({promise.kind}) cannot "
            f"burn {decimal(pair.factor)} times too fast over {pair.long}: no {pair.severity} for that"
        )


def _shown(name: str) -> str:
    """Return a name quoted, on one line, in ASCII."""
    return json.dumps(name)


def _writable(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UnwritableError(f"{what} {_shown(text)} is no Unicode text: a label cannot hold it") from None
