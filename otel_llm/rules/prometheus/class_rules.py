"""Prometheus rules of SLO classes: recordings and alerts over the counters of `/metrics`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal

from otel_llm.config.durations import exact
from otel_llm.rules.prometheus.own_rules import collector_group, readers_group
from otel_llm.rules.prometheus.promql import (
    JUDGED,
    Group,
    Rule,
    alert,
    decimal,
    quoted,
    record,
    rule_file,
    selector,
    untemplated,
)
from otel_llm.slo.metrics import FLUIDITY_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_llm.slo.classes import SloClass, SloClasses

PERIOD_DAYS: Final = 30
HOURS: Final = {
    "5m": Fraction(1, 12), "30m": Fraction(1, 2), "1h": Fraction(1), "2h": Fraction(2),
    "6h": Fraction(6), "1d": Fraction(24), "3d": Fraction(72),
}  # fmt: skip
"""The windows, in hours."""
SLOW_INTERVAL: Final = "2m"
"""How often windows of a day or more are evaluated. An instant query looks back five minutes, so nothing is missed."""

REQUESTS: Final = "otel_llm:slo_requests:increase"
ERRORS: Final = "otel_llm:slo_errors:increase5m"
SLI: Final = "slo:sli_error:ratio_rate"
BUDGET: Final = "slo:error_budget:ratio"

Severity = Literal["page", "ticket"]


@dataclass(frozen=True, slots=True)
class Pair:
    """An alert if `spent` of the period's budget is used within `long`, and still is within `short`."""

    severity: Severity
    spent: Fraction
    long: str
    short: str

    @property
    def factor(self) -> Fraction:
        """Return the burn rate: 1 spends the budget in just the period."""
        return self.spent * PERIOD_DAYS * 24 / HOURS[self.long]


PAIRS: Final = (
    Pair("page", Fraction(2, 100), "1h", "5m"),
    Pair("page", Fraction(5, 100), "6h", "30m"),
    Pair("ticket", Fraction(10, 100), "1d", "2h"),
    Pair("ticket", Fraction(10, 100), "3d", "6h"),
)
"""The SRE workbook, "Alerting on SLOs", table 5-8; the third is Sloth's, from the same chapter."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise of a class, and how PromQL counts it: error ratios over many windows, the budget, the alerts.

    Names and labels of the records are Sloth's (github.com/slok/sloth, `prometheus/v1`), so that its dashboards find
    them. Two things differ from what it writes. If nothing ended there is no ratio, in place of a NaN that spoils every
    later sum. And the ratio of the whole period weighs each request alike, in place of each five minutes: at night one
    request would count as much as a thousand at noon.

    Args:
        slo_class, kind: the class, and `attainment` or `fluidity`.
        objective: the share of the requests that keep it.
        errors, requests: selectors of counters, without a range: those that do not keep it; all that were judged.
        service, match: Sloth's name of the service; labels of the scraped target that every selector asks for.
        least: an alert needs at least so many requests in its longer window.
        words: the description of a miss, for people.
    """

    slo_class: str
    kind: Literal["attainment", "fluidity"]
    objective: Fraction
    errors: str
    requests: str
    service: str
    match: tuple[tuple[str, str], ...]
    least: int
    words: str

    @property
    def budget(self) -> Fraction:
        """Return the share of requests that may miss."""
        return 1 - self.objective

    @property
    def slo(self) -> str:
        """Return Sloth's name of the promise."""
        return f"{self.slo_class}-{self.kind}"

    @property
    def id(self) -> str:
        """Return Sloth's id, which no other promise of the file has."""
        return f"{self.service}-{self.slo}"

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of its records."""
        names = {"sloth_id": self.id, "sloth_service": self.service, "sloth_slo": self.slo}
        return {**dict(self.match), "slo_class": self.slo_class, **names}

    def least_of(self, pair: Pair) -> int:
        """Return how many requests a pair's longer window needs: never so few that a single miss is an alert.

        Without a budget a single miss is what the alert is for.
        """
        if self.budget == 0:
            return self.least
        return max(self.least, math.ceil(1 / (pair.factor * self.budget)))

    def alive(self, severity: Severity) -> list[Pair]:
        """Return the pairs that can alert: no ratio exceeds 1, so under a low objective some rates are out of reach."""
        return [pair for pair in PAIRS if pair.severity == severity and pair.factor * self.budget < 1]

    def dead(self) -> list[Pair]:
        """Return the other pairs."""
        return [pair for pair in PAIRS if pair.factor * self.budget >= 1]

    def groups(self) -> list[Group]:
        """Return its groups. Prometheus evaluates a group's rules in order, each with the results of those before."""
        quick = [*self._windows(window for window, hours in HOURS.items() if hours < 24), *self._budget()]
        slow = [*self._windows(window for window, hours in HOURS.items() if hours >= 24), *self._period()]
        return [
            {"name": f"slo-{self.id}", "rules": quick + self._alerts("page")},
            {"name": f"slo-{self.id}-days", "interval": SLOW_INTERVAL, "rules": slow + self._alerts("ticket")},
        ]

    def _windows(self, windows: Iterable[str]) -> list[Rule]:
        found = []
        for window in windows:
            labels = {**self.labels, "sloth_window": window}
            errors = f"sum by (measured_at) (increase({self.errors}[{window}]))"
            found.append(
                record(f"{REQUESTS}{window}", f"sum by (measured_at) (increase({self.requests}[{window}]))", labels)
            )
            if window == "5m":
                found.append(record(ERRORS, errors, labels))
            known = f"({selector(f'{REQUESTS}{window}', self._filter)} > 0)"
            found.append(record(f"{SLI}{window}", f"{errors}\n/ on (measured_at)\n{known}\n", labels))
        return found

    def _budget(self) -> list[Rule]:
        objective = decimal(self.objective)
        info = {
            "sloth_mode": "otel-llm",
            "sloth_objective": decimal(self.objective * 100),
            "sloth_spec": "otel-llm/v1",
            "sloth_version": "otel-llm",
        }
        rules = [
            record("slo:objective:ratio", f"vector({objective})", self.labels),
            record(BUDGET, f"vector({decimal(self.budget)})", self.labels),
            record("slo:time_period:days", f"vector({PERIOD_DAYS})", self.labels),
            record("sloth_slo_info", "vector(1)", {**self.labels, **info}),
        ]
        if self.budget:
            rules.append(self._burn("slo:current_burn_rate:ratio", f"{SLI}5m"))
        return rules

    def _period(self) -> list[Rule]:
        period = f"{PERIOD_DAYS}d"
        labels = {**self.labels, "sloth_window": period}
        # Windows of five minutes overlap, in errors and in requests, so that each request has the same weight.
        errors, requests = (
            f"sum_over_time({selector(name, self._filter)}[{period}])" for name in (ERRORS, f"{REQUESTS}5m")
        )
        rules = [record(f"{SLI}{period}", f"{errors}\n/\n({requests} > 0)\n", labels)]
        if self.budget:
            left = f"1 - {selector('slo:period_burn_rate:ratio', self._filter)}"
            rules += [
                self._burn("slo:period_burn_rate:ratio", f"{SLI}{period}"),
                record("slo:period_error_budget_remaining:ratio", left, self.labels),
            ]
        return rules

    def _burn(self, name: str, ratio: str) -> Rule:
        join = "/ on (sloth_id, sloth_slo, sloth_service) group_left"
        expr = f"{selector(ratio, self._filter)}\n{join}\n{selector(BUDGET, self._filter)}\n"
        return record(name, expr, self.labels)

    def _alerts(self, severity: Severity) -> list[Rule]:
        pairs = self.alive(severity)
        if not pairs:
            return []
        percent = decimal(self.objective * 100)
        return [
            alert(
                f"Llm{self.kind.capitalize()}Burn",
                "or\n".join(map(self._burns, pairs)),
                severity,
                f"Class {{{{ $labels.slo_class }}}}, {self.words}, measured at the {{{{ $labels.measured_at }}}}: "
                "the error budget goes too fast",
                f"{{{{ $value | humanizePercentage }}}} of the requests in the longer window; "
                f"promised is that {percent}% are spared it.",
                # Both are labels of the series too; here they distinguish the rule from those of other classes.
                labels={
                    "sloth_severity": severity,
                    "slo_class": untemplated(self.slo_class),
                    "sloth_id": untemplated(self.id),
                },
            )
        ]

    def _burns(self, pair: Pair) -> str:
        # The longer window stands first: `and` keeps its value, which the annotation shows.
        above = decimal(pair.factor * self.budget)
        conditions = (
            f"{selector(f'{SLI}{pair.long}', self._filter)} > {above}",
            f"{selector(f'{SLI}{pair.short}', self._filter)} > {above}",
            f"{selector(f'{REQUESTS}{pair.long}', self._filter)} >= {self.least_of(pair)}",
        )
        lines = "\n  and\n".join(f"  max without (sloth_window) ({one})" for one in conditions)
        return f"(\n{lines}\n)\n"

    @property
    def _filter(self) -> dict[str, str]:
        return {**dict(self.match), "sloth_id": self.id}


def attainment_counters(slo_class: str, match: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """Return the selectors of requests that missed their deadlines, and of those with a verdict."""
    of = {**dict(match), "slo_class": slo_class}
    name = "otel_llm_requests_total"
    return selector(name, {**of, "met": "false"}), selector(name, of, met=JUDGED)


def fluidity_counters(slo_class: str, match: tuple[tuple[str, str], ...], bound: float) -> tuple[str, str]:
    """Return the selectors of requests up to a bound of the histogram, and of all in it."""
    of = {**dict(match), "slo_class": slo_class}
    name = "otel_llm_fluidity_index"
    return selector(f"{name}_bucket", of, le=f"={quoted(str(bound))}"), selector(f"{name}_count", of)


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
