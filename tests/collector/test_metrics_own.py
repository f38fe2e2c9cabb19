from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_llm.collector.telemetry.self_metrics import (
    OWN_METRICS,
    OWN_UNITS,
    DecisionLatency,
    own_families,
    own_metrics_table,
)
from otel_llm.live.user_metrics import UserMetrics

DOCS = Path(__file__).parents[2] / "docs" / "collector-metrics.md"


def test_every_figure_is_read_from_its_source() -> None:
    counts: dict[str, int | float] = {
        one.key: number for number, one in enumerate(OWN_METRICS, start=1) if not one.label
    }
    counts |= {"refused.bad_seq": 3, "refused.missing_seq": 4, "refused_export.busy": 5, "anomaly.skew": 6}
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in own_families(counts)
        for sample in family.samples
    }
    for one in OWN_METRICS:
        if not one.label:
            assert found.pop((one.family + ("_total" if one.kind == "counter" else ""),)) == counts[one.key]
    assert found == {
        ("otel_llm_collector_refused_spans_total", "bad_seq"): 3,
        ("otel_llm_collector_refused_spans_total", "missing_seq"): 4,
        ("otel_llm_collector_refused_exports_total", "busy"): 5,
        ("otel_llm_collector_anomalies_total", "skew"): 6,
    }


def test_what_was_never_counted_is_zero() -> None:
    found = [sample.value for family in own_families({}) for sample in family.samples]
    assert found == [0] * sum(not one.label for one in OWN_METRICS)


def test_names_are_declared_once_and_as_prometheus_wants_them() -> None:
    names = [one.family for one in OWN_METRICS]
    assert len(set(names)) == len(names)
    assert len({one.key for one in OWN_METRICS}) == len(names)
    for one in OWN_METRICS:
        assert re.fullmatch(r"otel_llm_collector_[a-z_]+", one.family)
        assert not one.family.endswith("_total")
        assert one.unit.startswith("{") or one.unit in ("By", "s")
        assert (one.unit == "By") == one.family.endswith("_bytes")
        assert (one.unit == "s") == one.family.endswith("_seconds")
    assert not {family.name for family in UserMetrics().families()} & set(OWN_UNITS)


def test_decision_latency_is_counted_in_seconds() -> None:
    latency = DecisionLatency()
    for ns in (20_000_000, 20_000_001, 400_000, -5):
        latency.observe_ns(ns)
    (family,) = latency.families()
    found = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert family.name == "otel_llm_collector_decision_seconds"
    assert found["otel_llm_collector_decision_seconds_bucket", "0.0005"] == 2
    assert found["otel_llm_collector_decision_seconds_bucket", "0.02"] == 3
    assert found["otel_llm_collector_decision_seconds_count", None] == 4
    assert found["otel_llm_collector_decision_seconds_sum", None] == 0.040400001


def test_the_table_in_the_docs_is_the_declared_one() -> None:
    assert own_metrics_table() in DOCS.read_text(encoding="utf-8")


def test_the_table_has_a_line_for_each() -> None:
    lines = own_metrics_table().splitlines()
    assert lines[0] == "| name | kind | what |"
    assert (
        "| `otel_llm_collector_refused_spans_total{reason}` | counter | otel-llm spans that could not be used. |"
        in lines
    )
    assert len(lines) == len(OWN_METRICS) + 3
    assert all(line.count("|") == 4 for line in lines)


@pytest.mark.parametrize("kind", ["counter", "gauge"])
def test_families_have_the_declared_kind(kind: str) -> None:
    kinds = {family.name: family.type for family in own_families({})}
    assert {one.family for one in OWN_METRICS if one.kind == kind} == {
        name for name, found in kinds.items() if found == kind
    }
