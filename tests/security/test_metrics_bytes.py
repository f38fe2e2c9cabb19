"""What names in telemetry can make of `/metrics`: a bounded text, rendered at most once a second."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, Metric
from support.commands import collector, wait_until
from support.examples import examples
from support.patience import WAIT_S

from otel_llm.collector.telemetry.self_metrics import own_families
from otel_llm.live.exposition import SHARED_NS, SharedText, text_of
from otel_llm.live.labels import MAX_LABEL_CHARS, METRICS_BYTES
from otel_llm.live.user_metrics import MAX_SERIES, OTHER, Key, UserMetrics
from otel_llm.shared.clock import FakeClock
from otel_llm.slo.classes import OUTCOMES

MIB = 2**20
ESCAPED = '"\\' * 500
"""A thousand characters that each take two bytes in Prometheus's text."""


def charge(metrics: UserMetrics, key: Key) -> None:
    """Count so much that every number is as long as numbers get."""
    metrics.charge(key, 1, 10**15 + 1, 123456789.123456789, 1.2345678901234567e-300)


def scrape(metrics: UserMetrics) -> bytes:
    return text_of([*metrics.families(), *metrics.gauges({}), *own_families({})])


def test_a_long_name_ends_in_a_hash_and_stays_what_it_is() -> None:
    metrics = UserMetrics()
    alike = "m" * 1000
    for name in (f"{alike}a", f"{alike}b", f"{alike}a", "m" * MAX_LABEL_CHARS):
        charge(metrics, Key("chat", name, "client", ""))
    names = sorted(labels[1] for labels in metrics.series)
    assert names == [
        "m" * MAX_LABEL_CHARS,
        "m" * 111 + "~8be6e30ba566f2c6",
        "m" * 111 + "~b54b6ab7b47de86b",
    ]
    assert [metrics.series["chat", name, "client"].tokens_read for name in names] == [1, 1, 2]


def test_a_listed_model_of_a_long_name_is_no_other() -> None:
    metrics = UserMetrics(models=frozenset({"m" * 200}))
    charge(metrics, Key("chat", "m" * 200, "client", ""))
    assert [labels[1][:111] for labels in metrics.series] == ["m" * 111]


def test_names_that_are_escaped_do_not_make_a_scrape_longer_than_its_limit() -> None:
    metrics = UserMetrics(by_instance=True)
    for number in range(600):
        charge(metrics, Key("chat", f"{number}{ESCAPED}", "client", f"{number}{ESCAPED}"))
    text = scrape(metrics)
    assert METRICS_BYTES // 2 < len(text) <= METRICS_BYTES
    assert len(metrics.series) + metrics.gave_way["series"] == 600 > 500 > len(metrics.series)
    assert [labels[1][:3] for labels in metrics.series][-1] == "599"


def test_label_sets_in_use_are_not_forgotten_for_want_of_bytes() -> None:
    metrics = UserMetrics(by_instance=True)
    keys = [Key("chat", f"{number}{ESCAPED}", "client", f"{number}{ESCAPED}") for number in range(600)]
    list(metrics.gauges(dict.fromkeys(keys, (0, 0, 0, 0, 1))))
    for key in keys:
        charge(metrics, key)
    assert METRICS_BYTES // 2 < len(scrape(metrics)) <= METRICS_BYTES
    assert metrics.series["chat", OTHER, "client", OTHER].tokens_read == 601 - len(metrics.series) > 0


def test_usual_names_fill_the_number_of_sets_before_the_bytes() -> None:
    metrics = UserMetrics(by_instance=True)
    for number in range(MAX_SERIES):
        charge(metrics, Key("chat", "meta-llama/Llama-3.3-70B-Instruct", "client", f"vllm-{number}.gpu.svc:8000"))
    assert len(metrics.series) == MAX_SERIES


@settings(max_examples=examples(20))
@given(st.lists(st.tuples(st.text(max_size=300), st.text(max_size=300)), max_size=40), st.sampled_from([1, 2]))
def test_no_names_make_a_scrape_longer(names: list[tuple[str, str]], mib: int) -> None:
    metrics = UserMetrics(by_instance=True, max_bytes=mib * MIB)
    for number, (model, instance) in enumerate(names):
        for copy in range(5):
            key = Key("chat", f"{model}{copy}", ("client", "relay")[number % 2], f"{instance}{number}")
            charge(metrics, key)
            for outcome in OUTCOMES:
                metrics.foreign({**key._asdict(), "outcome": outcome, "met": None, "ttft_s": 1e9})
    assert len(scrape(metrics)) <= mib * MIB


class EngineRequest:
    """Families that count how often they are asked for, and wait for `let` before they are rendered."""

    def __init__(self) -> None:
        self.times = 0
        self.let = threading.Event()

    def collect(self) -> Iterator[Metric]:
        self.times += 1
        if self.times == 3:
            raise TimeoutError("busy")
        return self.families(self.times)

    def families(self, times: int) -> Iterator[Metric]:
        assert self.let.wait(WAIT_S)
        family = CounterMetricFamily("asked", "How often.")
        family.add_metric((), times)
        yield family


def test_scrapes_of_a_second_share_one_rendering() -> None:
    asked, clock = EngineRequest(), FakeClock()
    shared = SharedText(asked.collect, clock.now_ns)
    first = shared.text()
    assert shared.text() is first  # it is under way
    asked.let.set()
    assert b"asked_total 1.0" in first.result(WAIT_S)
    clock.pass_s(SHARED_NS / 1e9 - 0.001)
    assert shared.text() is first
    clock.pass_s(0.002)
    assert b"asked_total 2.0" in shared.text().result(WAIT_S)


def test_an_error_is_that_of_all_who_wait_and_of_nobody_later() -> None:
    asked, clock = EngineRequest(), FakeClock()
    asked.let.set()
    shared = SharedText(asked.collect, clock.now_ns)
    for _ in range(2):
        shared.text().result(WAIT_S)
        clock.pass_s(2)
    with pytest.raises(TimeoutError):
        shared.text().result(WAIT_S)
    assert b"asked_total 4.0" in shared.text().result(WAIT_S)


def test_a_rendering_that_fails_is_tried_again() -> None:
    numbers = count()

    def families() -> Iterator[Metric]:
        if next(numbers) == 0:
            raise RuntimeError("a bug")
        yield CounterMetricFamily("fine", "Fine.")

    shared = SharedText(families, FakeClock().now_ns)
    with pytest.raises(RuntimeError, match="a bug"):
        shared.text().result(WAIT_S)
    assert b"fine" in shared.text().result(WAIT_S)


def test_a_collector_holds_the_limit_of_its_settings(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(
        "version: 1\nlimits: {metrics_bytes: 1048576}\nmetrics: {instance_label: true}\n"
    )
    with collector(tmp_path, "--config", tmp_path / "settings.yaml", "--verdicts", "none") as running:
        for begin in range(0, 600, 100):
            post(f"http://{running.http}/v1/traces", export(begin, begin + 100))

        def scraped() -> str:
            with urllib.request.urlopen(f"{running.web}/metrics", timeout=WAIT_S) as answer:
                return str(answer.read().decode())

        wait_until("all are counted", lambda: "otel_llm_collector_segments_total 600.0" in scraped())
        with ThreadPoolExecutor(8) as scrapers:
            texts = list(scrapers.map(lambda _: scraped(), range(8)))
        assert all(len(text.encode()) <= MIB for text in texts)
        assert max(map(len, texts)) > MIB // 2
        assert running.stop()[0] == 0


def export(begin: int, end: int) -> bytes:
    """Return segment 0 of streams of as many models and instances, as JSON."""
    spans = [
        {
            "traceId": f"{number + 1:032x}",
            "spanId": f"{number + 1:016x}",
            "parentSpanId": f"{number + 1_000_000:016x}",
            "name": "otel_llm.segment",
            "kind": 1,
            "startTimeUnixNano": "1790000000000000000",
            "endTimeUnixNano": "1790000000000000000",
            "attributes": [
                {"key": "otel_llm.segment.seq", "value": {"intValue": "0"}},
                {"key": "otel_llm.segment.first_token", "value": {"intValue": "0"}},
                {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                {"key": "gen_ai.request.model", "value": {"stringValue": f"{number}{ESCAPED}"}},
                {"key": "otel_llm.instance", "value": {"stringValue": f"{number}{ESCAPED}"}},
            ],
        }
        for number in range(begin, end)
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


def post(url: str, body: bytes) -> None:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        assert answer.status == 200
