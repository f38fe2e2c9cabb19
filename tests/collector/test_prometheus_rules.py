"""Prometheus rules of SLO classes: thresholds, least numbers, what is left out, names of metrics, the command."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.cli.main import main
from otel_llm.collector.telemetry.self_metrics import own_families
from otel_llm.config.yaml_file import parse_yaml
from otel_llm.live.user_metrics import UserMetrics
from otel_llm.rules.files.slo_file import load_slo, slo_of
from otel_llm.rules.prometheus.class_rules import HOURS, PAIRS, PrometheusSettings, UnwritableError, prometheus_rules
from otel_llm.rules.prometheus.promql import decimal
from otel_llm.slo.classes import SloClass, SloClasses

EXAMPLE = Path(__file__).parents[2] / "examples" / "prometheus"
PAGE = Path(__file__).parents[2] / "docs" / "prometheus.md"


def groups(objective: str, settings: PrometheusSettings | None = None) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the groups and notes for one class, `chat`, with this objective."""
    text = f"version: 1\ndefault: chat\nclasses: {{chat: {{objective: {objective}}}}}\n"
    written = prometheus_rules(slo_of(parse_yaml(text.encode(), "slo.yaml")), settings)
    return yaml.safe_load(written.text)["groups"], written.notes


def rules_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rule for group in found for rule in group["rules"]]


def thresholds(found: list[dict[str, Any]], name: str = "LlmAttainmentBurn") -> list[tuple[str, ...]]:
    """Return (severity, long, short, above, above, least) of each pair of windows that alerts."""
    ratio, count = r"ratio_rate(\w+)\{[^}]*\} > ([\d.]+)\)", r"increase(\w+)\{[^}]*\} >= (\d+)\)"
    seen: list[tuple[str, ...]] = []
    for rule in rules_of(found):
        if rule.get("alert") == name:
            for pair in rule["expr"].split("or\n("):
                (long, above), (short, still) = re.findall(ratio, pair)
                ((counted, least),) = re.findall(count, pair)
                assert counted == long
                seen.append((rule["labels"]["severity"], long, short, above, still, least))
    return seen


def test_the_burn_rates_are_those_of_the_workbook() -> None:
    assert [pair.factor for pair in PAIRS] == [Fraction("14.4"), 6, 3, 1]
    assert all(left < right for left, right in pairwise(HOURS.values()))
    # A short window is a twelfth of its long one, as the workbook advises.
    assert all(HOURS[pair.short] * 12 == HOURS[pair.long] for pair in PAIRS)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("0.99", [("0.144", "30"), ("0.06", "30"), ("0.03", "34"), ("0.01", "100")]),
        ("0.999", [("0.0144", "70"), ("0.006", "167"), ("0.003", "334"), ("0.001", "1000")]),
        ("0.95", [("0.72", "30"), ("0.3", "30"), ("0.15", "30"), ("0.05", "30")]),
        ("1.0", [("0", "30"), ("0", "30"), ("0", "30"), ("0", "30")]),
    ],
)
def test_thresholds_and_least_numbers(objective: str, expected: list[tuple[str, str]]) -> None:
    found, notes = groups(f"{{attainment: {objective}}}")
    windows = [("page", "1h", "5m"), ("page", "6h", "30m"), ("ticket", "1d", "2h"), ("ticket", "3d", "6h")]
    assert thresholds(found) == [
        (*pair, above, above, least) for pair, (above, least) in zip(windows, expected, strict=True)
    ]
    assert notes == ()


@given(digits=st.integers(1, 9_999_999), positions=st.integers(3, 7), least=st.integers(1, 500))
def test_a_single_miss_is_never_above_a_threshold(digits: int, positions: int, least: int) -> None:
    budget = Fraction(digits, 10**positions)
    if budget > 1:
        return
    found, _ = groups(f"{{attainment: {decimal(1 - budget)}}}", PrometheusSettings(least_requests=least))
    for *_, above, still, number in thresholds(found):
        assert still == above
        assert int(number) >= least
        assert Fraction(1, int(number)) <= Fraction(above)
        assert int(number) == least or Fraction(1, int(number) - 1) > Fraction(above), "no more than that needs"


def test_what_can_never_burn_so_fast_is_left_out_and_said() -> None:
    found, notes = groups("{attainment: 0.9}")
    assert [pair[:4] for pair in thresholds(found)] == [
        ("page", "6h", "30m", "0.6"), ("ticket", "1d", "2h", "0.3"), ("ticket", "3d", "6h", "0.1"),
    ]  # fmt: skip
    assert notes == (
        'class "chat": an objective of 0.9 (attainment) cannot burn 14.4 times too fast over 1h: no page for that',
    )
    found, notes = groups("{attainment: 0.0}")
    assert thresholds(found) == []
    assert len(notes) == 4


def test_without_an_objective_there_is_nothing_to_alert_on() -> None:
    found, notes = groups("{}")
    assert [group["name"] for group in found] == ["otel-llm-readers", "otel-llm-collector"]
    assert notes == ('class "chat" has no objective that can be alerted on',)


@pytest.mark.parametrize(
    ("index", "why"), [("0.92", "its histogram has no such bound"), ("1.0", "every request is up to it")]
)
def test_a_fluidity_that_the_histogram_cannot_tell_is_reported(index: str, why: str) -> None:
    found, notes = groups(f"{{fluidity_index: {index}, share: 0.99, attainment: 0.99}}")
    assert thresholds(found, "LlmFluidityBurn") == []
    assert notes == (f'class "chat": no rule for a fluidity index of {float(index):g}: {why}',)


def test_fluidity_is_promised_to_a_share() -> None:
    found, notes = groups("{fluidity_index: 0.9, share: 0.95}")
    assert [pair[3] for pair in thresholds(found, "LlmFluidityBurn")] == ["0.72", "0.3", "0.15", "0.05"]
    assert notes == ()
    assert 'otel_llm_fluidity_index_bucket{slo_class="chat",le="0.9"}' in str(found)


def test_a_promise_of_everything_has_no_burn_rate() -> None:
    records = {rule.get("record") for rule in rules_of(groups("{attainment: 1.0}")[0])}
    assert "slo:error_budget:ratio" in records
    assert not records & {"slo:current_burn_rate:ratio", "slo:period_error_budget_remaining:ratio"}


def test_the_records_are_sloths() -> None:
    (page, days) = (
        group["rules"] for group in groups("{attainment: 0.99}")[0] if group["name"].startswith("slo-otel-llm-chat")
    )
    names = [rule["record"] for rule in page + days if rule.get("record", "").startswith("slo")]
    windows = ("5m", "30m", "1h", "2h", "6h", "1d", "3d", "30d")
    assert {name for name in names if "ratio_rate" in name} == {f"slo:sli_error:ratio_rate{w}" for w in windows}
    assert {name for name in names if "ratio_rate" not in name} == {
        "slo:objective:ratio", "slo:error_budget:ratio", "slo:time_period:days", "slo:current_burn_rate:ratio",
        "slo:period_burn_rate:ratio", "slo:period_error_budget_remaining:ratio", "sloth_slo_info",
    }  # fmt: skip
    for rule in page + days:
        if "record" in rule:
            assert rule["labels"]["sloth_id"] == "otel-llm-chat-attainment"
            assert rule["labels"]["sloth_service"] == "otel-llm"
            assert rule["labels"]["sloth_slo"] == "chat-attainment"
        window = re.search(r"ratio_rate(\w+)", rule.get("record", ""))
        assert window is None or rule["labels"]["sloth_window"] == window[1]


def test_every_metric_is_one_that_the_collector_has() -> None:
    known = {"up"}
    for family in (*UserMetrics().families(), *UserMetrics().gauges({}), *own_families({})):
        known |= {family.name, f"{family.name}_total", f"{family.name}_bucket", f"{family.name}_count"}
    text = prometheus_rules(load_slo()).text
    named = set(re.findall(r"(?<![\w:])(?:otel_llm_\w+|up(?=\{))", text))
    assert len(named) > 15
    assert named <= known


def test_labels_of_the_target_are_asked_for_everywhere_and_recorded() -> None:
    settings = PrometheusSettings(job="tok", service="eu", match=(("env", 'a"b'), ("cluster", "x")))
    found, _ = groups("{fluidity_index: 0.9, share: 0.95, attainment: 0.99}", settings)
    for rule in rules_of(found):
        selected = re.findall(r"(?<![\w])(?:otel_llm[\w:]*|slo:[\w:]+|up)(\{.*?\})", rule["expr"])
        assert selected or rule["expr"].startswith("vector")
        assert all('cluster="x"' in one and r'env="a\"b"' in one for one in selected), rule
        if "record" in rule:
            assert (rule["labels"]["env"], rule["labels"]["cluster"]) == ('a"b', "x")
    assert 'job="tok"' in str(found)
    assert "eu-chat-fluidity" in str(found)


@pytest.mark.parametrize(
    "settings",
    [
        {"match": (("slo_class", "chat"),)},
        {"match": (("job", "x"),)},
        {"match": (("__name__", "x"),)},
        {"match": (("a-b", "x"),)},
        {"match": (("env", ""),)},
        {"match": (("env", "a"), ("env", "b"))},
        {"match": (("env", "\ud800"),)},
        {"job": ""},
        {"service": "\udcff"},
    ],
)
def test_what_no_label_can_be(settings: dict[str, Any]) -> None:
    with pytest.raises(UnwritableError):
        PrometheusSettings(**settings)


def test_a_class_whose_name_is_no_text() -> None:
    with pytest.raises(UnwritableError, match=r'"\\ud800"'):
        prometheus_rules(SloClasses((SloClass("\ud800"),), "\ud800"))


@given(st.decimals(0, 10**6, allow_nan=False, places=12))
def test_decimals_are_exact(number: Any) -> None:
    text = decimal(Fraction(number))
    assert Fraction(text) == number
    assert re.fullmatch(r"(0|[1-9]\d*)(\.\d*[1-9])?", text)


def test_a_third_has_no_decimal_text() -> None:
    with pytest.raises(ValueError, match="1/3"):
        decimal(Fraction(1, 3))


def test_the_committed_example_is_what_is_written() -> None:
    written = prometheus_rules(load_slo(EXAMPLE / "slo.yaml"))
    assert (EXAMPLE / "otel-llm.rules.yml").read_text(encoding="utf-8") == written.text, (
        "in examples/prometheus: otel-llm rules prometheus --slo slo.yaml > otel-llm.rules.yml; read the difference"
    )


def test_the_page_names_every_alert_and_the_numbers_of_the_example() -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = yaml.safe_load((EXAMPLE / "otel-llm.rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in rules_of(found):
        assert "alert" not in rule or f"`{rule['alert']}`" in page, rule["alert"]
    burns = [(pair.severity, f"{100 * pair.spent} %", pair.long, pair.short, decimal(pair.factor)) for pair in PAIRS]
    rows = [
        f"| {' | '.join(burn)} | {above} | {least} |\n"
        for burn, (*_, above, least) in zip(burns, thresholds(found), strict=True)
    ]
    assert "".join(rows) in page


def requested(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["rules", "prometheus", *arguments])


def test_the_command_prints_the_rules_and_says_what_is_left_out(tmp_path: Path) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text(
        'version: 1\ndefault: "a\\nb"\nclasses: {"a\\nb": {objective: {attainment: 0.9}}}\n', encoding="utf-8"
    )
    done = requested("--slo", str(slo), "--match", "env=a=b", "--least-requests", "7")
    assert done.exit_code == 0
    note = r'class "a\nb": an objective of 0.9 (attainment) cannot burn 14.4 times too fast over 1h: no page for that'
    assert done.stderr == f"note: {note}\n"
    assert done.stdout.splitlines()[1] == f"# {note}"
    assert yaml.safe_load(done.stdout)["groups"]
    assert 'env="a=b"' in done.stdout
    assert ">= 7)" in done.stdout


def test_the_command_refuses(tmp_path: Path) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text("version: 1\ndefault: chat\nclasses: {chat: {objective: {attainment: 2}}}\n", encoding="utf-8")
    done = requested("--slo", str(slo))
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{slo}:3:" in done.stderr
    assert "^" in done.stderr
    for arguments, reported in (
        (("--slo", str(tmp_path / "none.yaml")), "none.yaml"),
        (("--match", "env"), "--match env: write NAME=VALUE, as env=production"),
        (("--match", "env="), "--match env=: it needs a value: an empty one is an absent label"),
        (("--match", "met=true"), "otel-llm's own"),
        (("--least-requests", "0"), "--least-requests"),
    ):
        done = requested(*arguments)
        assert (done.exit_code, done.stdout) == (2, ""), arguments
        assert reported in done.stderr
