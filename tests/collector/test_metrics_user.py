from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from support.collector.out_verdicts import CHAT, KEY, MS, T0_NS, count, judged, samples

from otel_llm.live import user_metrics as metrics_user
from otel_llm.live.user_metrics import MAX_SERIES, OTHER, EndedReply, Key, UserMetrics, met_word
from otel_llm.slo.classes import OUTCOMES
from otel_llm.slo.ledger import window_charges
from otel_llm.slo.metrics import TBT_BUCKETS_S
from otel_llm.slo.stated_total import StatedReply

LABELS = frozenset({("slo_class", "chat"), ("model", "m"), ("measured_at", "client")})

request = st.tuples(
    st.lists(st.sampled_from([0.0, 2.0, 5.0, 20.0, 49.999999, 50.0, 300.0, 4000.0]), max_size=12),
    st.sampled_from(OUTCOMES),
    st.sampled_from([0.0, 1500.0]),
)


class Families(CollectorRegistry):
    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def value(metrics: UserMetrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, frozenset({"slo_class": "chat", "measured_at": "client", **labels}.items())]


@given(st.lists(request, max_size=6))
def test_what_is_counted_is_what_a_plain_loop_counts(requests: list[tuple[list[float], str, float]]) -> None:
    metrics = UserMetrics()
    expected: Counter[str] = Counter()
    words: Counter[tuple[str, str]] = Counter()
    bounds: Counter[str] = Counter()
    for gaps, outcome, silence_ms in requests:
        verdict, times = judged(gaps, outcome, silence_ms)
        count(metrics, KEY, verdict, times)
        words[outcome, met_word(verdict.met)] += 1
        expected["otel_llm_tokens_met_total"] += verdict.tokens_read if verdict.met else 0
        expected["otel_llm_deadlines_total"] += verdict.deadlines or 0
        expected["otel_llm_deadline_misses_total"] += verdict.deadline_misses or 0
        for name, seconds in (("ttft", verdict.ttft_ns), ("idle", verdict.idle_ns)):
            expected[f"otel_llm_{name}_seconds_count"] += seconds is not None
        expected["otel_llm_fluidity_index_count"] += verdict.fluidity_index is not None
        steps = [(after - before) / 1e9 for before, after in pairwise(times.tolist())]
        expected["otel_llm_tbt_seconds_count"] += len(steps)
        for bound in TBT_BUCKETS_S:
            bounds[str(bound)] += sum(step <= bound for step in steps)
    found = samples(metrics)
    for name, number in expected.items():
        assert found[name, LABELS] == number, name
    for (outcome, met), number in words.items():
        assert found["otel_llm_requests_total", LABELS | {("outcome", outcome), ("met", met)}] == number
    if requests:
        assert {le: found["otel_llm_tbt_seconds_bucket", LABELS | {("le", le)}] for le in bounds} == bounds


@given(st.lists(st.tuples(request, st.booleans()), max_size=8))
def test_the_counters_of_two_collectors_add_up_to_those_of_one(
    requests: list[tuple[tuple[list[float], str, float], bool]],
) -> None:
    one, left, right = UserMetrics(), UserMetrics(), UserMetrics()
    for (gaps, outcome, silence_ms), goes_left in requests:
        verdict, times = judged(gaps, outcome, silence_ms)
        for metrics in (one, left if goes_left else right):
            count(metrics, KEY, verdict, times)
            metrics.charge(KEY, verdict.tokens_read, verdict.idle_ns or 0, 0.25, 0.5)
    together = samples(left, right)
    alone = samples(one)
    assert together.keys() == alone.keys()
    for at, number in alone.items():
        assert together[at] == pytest.approx(number, rel=1e-12), at


@given(request)
def test_read_minus_penalty_plus_refunded_is_the_benefit(one: tuple[list[float], str, float]) -> None:
    verdict, times = judged(*one)
    end_ns = T0_NS + verdict.end_ns
    metrics = UserMetrics()
    for _, charge in window_charges(CHAT, T0_NS, times.tolist(), end_ns, verdict, 1000 * MS):
        cost = -math.fsum(charge.costs)
        penalty_tokens = max(0.0, cost) + max(0, -charge.tokens_read)
        metrics.charge(KEY, charge.tokens_read, charge.idle_ns, penalty_tokens, max(0.0, -cost))
    metrics.charge(KEY, 0, 0, 0.0, 0.0)
    read, penalty, refunded = (
        value(metrics, f"otel_llm_{name}_total", model="m")
        for name in ("tokens_read", "penalty_tokens", "penalty_refunded_tokens")
    )
    assert read - penalty + refunded == pytest.approx(verdict.benefit or 0.0)


def test_what_a_charge_gives_back_does_not_take_from_a_counter() -> None:
    metrics = UserMetrics()
    metrics.charge(KEY, 10, 3_000_000_000, 7.5, 0.0)
    metrics.charge(KEY, -4, -1_000_000_000, 4.0, 2.5)
    assert value(metrics, "otel_llm_tokens_read_total", model="m") == 10
    assert value(metrics, "otel_llm_idle_seconds_total", model="m") == 3.0
    assert value(metrics, "otel_llm_penalty_tokens_total", model="m") == 11.5
    assert value(metrics, "otel_llm_penalty_refunded_tokens_total", model="m") == 2.5


def test_a_stream_without_a_verdict_is_counted_and_adds_nothing_else() -> None:
    metrics = UserMetrics()
    metrics.judged(KEY, [EndedReply("lost", None, None)])
    assert value(metrics, "otel_llm_requests_total", model="m", outcome="lost", met="null") == 1
    assert value(metrics, "otel_llm_ttft_seconds_count", model="m") == 0


def test_the_counters_of_verdicts_begin_at_zero() -> None:
    """Or the first miss would be no increase to PromQL, which does not see a counter's first value."""
    metrics = UserMetrics()
    metrics.charge(KEY, 0, 0, 0.0, 0.0)
    for outcome in OUTCOMES:
        for met in ("true", "false"):
            assert value(metrics, "otel_llm_requests_total", model="m", outcome=outcome, met=met) == 0


def test_foreign_rows_are_counted_by_outcome_and_verdict() -> None:
    metrics = UserMetrics(by_instance=True)
    row: dict[str, Any] = {"slo_class": "chat", "model": None, "measured_at": "server", "instance": "pod-1"}
    row["tenant"] = "default"
    metrics.foreign({**row, "outcome": "error", "met": None, "ttft_s": None})
    (labels,) = metrics.series
    assert labels == ("chat", "", "server", "pod-1")
    assert metrics.series[labels].requests["error", "null"] == 1


def test_a_foreign_row_counts_the_ttft_that_its_span_states() -> None:
    metrics = UserMetrics()
    row: dict[str, Any] = {"slo_class": "chat", "model": "m", "measured_at": "client", "instance": None, "met": None}
    row["tenant"] = "default"
    for ttft_s, outcome in ((0.3, "completed"), (0.300000001, "completed"), (2, "error"), (None, "completed")):
        metrics.foreign({**row, "outcome": outcome, "ttft_s": ttft_s})
    assert value(metrics, "otel_llm_ttft_seconds_bucket", model="m", le="0.3") == 1  # on a bound: as of our own streams
    assert value(metrics, "otel_llm_ttft_seconds_bucket", model="m", le="0.5") == 2
    assert value(metrics, "otel_llm_ttft_seconds_count", model="m") == 3
    assert value(metrics, "otel_llm_ttft_seconds_sum", model="m") == 2.600000001
    assert value(metrics, "otel_llm_requests_total", model="m", outcome="completed", met="null") == 3


def test_an_unlisted_value_counts_as_other_and_an_unknown_one_does_not() -> None:
    metrics = UserMetrics(by_instance=True, models=frozenset({"m"}), instances=frozenset({"a", "b"}))
    keys: Mapping[Key, tuple[str, ...]] = {
        Key("chat", "m", "client", "a"): ("chat", "m", "client", "a"),
        Key("chat", "evil", "client", "b"): ("chat", OTHER, "client", "b"),
        Key("chat", "m", "client", "c"): ("chat", "m", "client", OTHER),
        Key("chat", "", "client", ""): ("chat", "", "client", ""),
    }
    for key in keys:
        metrics.charge(key, 1, 0, 0.0, 0.0)
    assert set(metrics.series) == set(keys.values())


@pytest.mark.parametrize("by_instance", [False, True])
def test_the_number_of_series_is_bounded_whatever_comes(by_instance: bool) -> None:
    metrics = UserMetrics(by_instance=by_instance)
    total = metrics_user.CACHED_KEYS + MAX_SERIES
    for number in range(total):
        metrics.charge(model(number), 1, 0, 0.0, 0.0)
        metrics.foreign({"slo_class": "chat", "model": f"n{number}", "measured_at": "relay", "instance": "",
                         "outcome": "completed", "met": True, "ttft_s": None, "tenant": "default"})  # fmt: skip
    assert len(metrics.series) == MAX_SERIES
    assert len(metrics.known) <= metrics_user.CACHED_KEYS
    assert metrics.gave_way["series"] == 2 * total - MAX_SERIES
    last = {labels[1] for labels in metrics.series}
    assert last == {f"{name}{number}" for name in "mn" for number in range(total - MAX_SERIES // 2, total)}


def model(number: int, tenant: str = "default") -> Key:
    return Key("chat", f"m{number}", "client", f"pod-{number}", tenant)


def names(metrics: UserMetrics) -> set[str]:
    return {labels[1] for labels in metrics.series}


def test_the_set_that_was_used_least_recently_gives_way_and_begins_again_from_0() -> None:
    metrics = UserMetrics()
    for number in [*range(MAX_SERIES), 0, MAX_SERIES, MAX_SERIES + 1]:
        metrics.charge(model(number), 1, 0, 0.0, 0.0)
    assert names(metrics) == {f"m{number}" for number in [0, *range(3, MAX_SERIES + 2)]}
    assert value(metrics, "otel_llm_tokens_read_total", model="m0") == 2
    metrics.charge(model(1), 1, 0, 0.0, 0.0)
    metrics.charge(model(1), 1, 0, 0.0, 0.0)
    assert value(metrics, "otel_llm_tokens_read_total", model="m1") == 2
    assert metrics.gave_way["series"] == 3


def test_sets_with_streams_in_flight_do_not_give_way_and_what_is_other_gets_its_name_back() -> None:
    metrics = UserMetrics()
    counts = {model(number): (0, 0, 0, 0, 1) for number in range(MAX_SERIES)}
    for _ in range(2):
        list(metrics.gauges(counts))
        metrics.charge(model(MAX_SERIES), 1, 0, 0.0, 0.0)
    assert names(metrics) == {OTHER, *(f"m{number}" for number in range(MAX_SERIES))}
    assert metrics.series["chat", OTHER, "client"].tokens_read == 2
    metrics.hold([key for key in counts if key.model != "m7"])
    metrics.charge(model(MAX_SERIES), 1, 0, 0.0, 0.0)
    assert names(metrics) == {OTHER, *(f"m{number}" for number in range(MAX_SERIES + 1) if number != 7)}
    assert metrics.series["chat", OTHER, "client"].tokens_read == 2


def test_one_tenants_models_in_flight_leave_room_for_anothers() -> None:
    metrics = UserMetrics()
    counts = {model(number, "flood"): (1, 0, 0, 0, 0) for number in range(MAX_SERIES)}
    list(metrics.gauges(counts))
    flying, starving, _ = metrics.gauges({**counts, Key("chat", "llama", "client", "", "shop"): (0, 1, 0, 0, 0)})
    assert "llama" in names(metrics)
    assert {sample.labels["model"]: sample.value for sample in flying.samples} == {
        **{f"m{number}": 1 for number in range(1, MAX_SERIES)}, "llama": 1, OTHER: 1,
    }  # fmt: skip
    assert sum(sample.value for sample in starving.samples) == MAX_SERIES


def test_of_two_tenants_with_one_model_the_streams_in_flight_are_added() -> None:
    metrics = UserMetrics()
    flying, *_ = metrics.gauges({model(1, "a"): (1, 0, 0, 0, 0), model(1, "b"): (0, 2, 0, 0, 0)})
    assert [sample.value for sample in flying.samples] == [3]


def test_gauges_say_how_many_fly_and_starve_under_the_labels_of_the_counters() -> None:
    metrics = UserMetrics(models=frozenset({"m"}))
    metrics.charge(Key("code", "m", "client", ""), 1, 0, 0.0, 0.0)
    counts: dict[Key, tuple[int, ...]] = {
        Key("chat", "m", "client", "a"): (1, 0, 2, 0, 0),
        Key("chat", "m", "client", "b"): (2, 0, 0, 0, 0),
        Key("chat", "x", "client", "a"): (0, 1, 0, 0, 0),
        Key("chat", "y", "client", "a"): (1, 0, 0, 0, 3),
    }
    flying, starving, runways = metrics.gauges(counts)
    for gauge, expected in ((flying, (5, 5, 0)), (starving, (3, 1, 0))):
        found = {(sample.labels["slo_class"], sample.labels["model"]): sample.value for sample in gauge.samples}
        assert found == dict(zip((("chat", "m"), ("chat", OTHER), ("code", "m")), expected, strict=True))
    assert [family.name for family in (flying, starving)] == ["otel_llm_streams_in_flight", "otel_llm_streams_starving"]
    found = {(one.labels["model"], one.labels["runway"]): one.value for one in runways.samples if one.value}
    assert found == {
        ("m", "waiting"): 3, ("m", "1-3s"): 2, (OTHER, "waiting"): 1, (OTHER, "0-1s"): 1, (OTHER, "10s+"): 3,
    }  # fmt: skip


def test_a_model_that_is_not_listed_is_named_by_no_family() -> None:
    metrics = UserMetrics(models=frozenset({"m"}))
    for model in ("m", "secret"):
        metrics.stated(StatedReply(model, "openai", 10, 20, learned=True))
    labels = {sample.labels["model"] for family in metrics.replies.families() for sample in family.samples}
    assert labels == {"m", OTHER}


def test_the_text_is_read_back_as_it_was_counted() -> None:
    metrics = UserMetrics()
    key = Key("chat", 'a"b\\c\nd', "client", "")
    verdict, times = judged([300.0, *[20.0] * 9])
    count(metrics, key, verdict, times)
    text = generate_latest(Families([*metrics.families(), *metrics.gauges({key: (0, 1, 0, 0, 0)})])).decode()
    read = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert {at: number for at, number in read.items() if "streams" not in at[0]} == samples(metrics)
    tbt = "otel_llm_tbt_seconds_sum", frozenset({("slo_class", "chat"), ("model", key[1]), ("measured_at", "client")})
    assert Fraction(read[tbt]).limit_denominator(10**9) == Fraction(180 * MS, 10**9)


def test_a_scrape_may_read_while_the_evaluator_counts() -> None:
    """Every histogram that is read is one: its buckets do not fall, and its last one is its count."""
    metrics = UserMetrics()
    verdict, times = judged([300.0, *[20.0] * 50])
    done = threading.Event()
    broken: list[Exception] = []

    def evaluate() -> None:
        try:
            for number in range(2000):
                count(metrics, Key("chat", f"m{number % 700}", "client", ""), verdict, times)
        except Exception as error:  # noqa: BLE001  told by the test's own thread
            broken.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=evaluate)
    thread.start()
    read = 0
    while not done.is_set() or not read:
        for family in metrics.families():
            if family.type != "histogram":
                continue
            last = 0.0
            for sample in family.samples:
                if sample.name.endswith("_bucket"):
                    assert sample.value >= last
                    last = sample.value
                elif sample.name.endswith("_count"):
                    assert sample.value == last
                    last = 0.0
        read += 1
    thread.join()
    assert not broken
    assert sum(sum(series.requests.values()) for series in metrics.series.values()) == MAX_SERIES  # one each
    assert metrics.gave_way["series"] == 2000 - MAX_SERIES
