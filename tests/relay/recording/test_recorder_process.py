"""A relay's recorder in a process: its threads, its exporter, and whatever provider there is."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.evaluate.sinks import KeepingSink
from support.patience import WAIT_S
from support.relay.recording import CLASSES, EngineRequest

from otel_llm import semconv
from otel_llm.evaluate.own_streams.first_hand import FirstHand
from otel_llm.instrumentation.process import runtime
from otel_llm.relay.recording.recorder import Recorder, relay_runtime
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.shared.clock import MonotonicClock


def play(exporter: InMemorySpanExporter) -> None:
    running = relay_runtime(exporter)
    first_hand = FirstHand(CLASSES, RuleEngine(RuleSet(())), KeepingSink())
    timers: list[threading.Timer] = []

    def later(delay: float, callback: Any, /) -> threading.Timer:
        timers.append(threading.Timer(delay, callback))
        return timers[-1]

    recorder = Recorder(running, first_hand, MonotonicClock(), later, lambda: None)
    recorded = recorder.begin([], EngineRequest(), running.clock_ns())
    recorded.served_by("a", exact_resume=True)
    recorded.tokens(running.clock_ns(), 0, 1, "content")
    recorded.migrated("a", "b", 1, 0.5, rule="R")
    recorded.ended("completed")
    assert running.stop(WAIT_S)
    assert all(timer.finished.is_set() for timer in timers)


def test_the_runtime_of_a_relay_sends_and_hooks_nothing() -> None:
    exporter = InMemorySpanExporter()
    play(exporter)
    first, last, request = exporter.get_finished_spans()
    assert [span.name for span in (first, last)] == [semconv.SEGMENT_SPAN] * 2
    assert [len(span.events) for span in (first, last)] == [0, 1]
    assert first.start_time == first.end_time == request.start_time == last.start_time
    assert last.events[0].timestamp <= (last.end_time or 0)
    [event] = request.events
    assert (event.name, (event.attributes or {})["rule"]) == ("otel_llm.migrated", "R")
    assert runtime.running() is None


def test_where_the_process_has_a_provider_the_events_are_on_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    play(InMemorySpanExporter())
    [request] = spans.get_finished_spans()
    assert [event.name for event in request.events] == ["otel_llm.migrated"]
    assert (request.attributes or {})[semconv.MEASURED_AT] == "relay"


def test_an_environment_that_switches_opentelemetry_off_has_nothing_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    running = relay_runtime()
    recorder = Recorder(
        running,
        FirstHand(CLASSES, RuleEngine(RuleSet(())), KeepingSink()),
        MonotonicClock(),
        threading.Timer,
        lambda: None,
    )
    recorder.begin([], EngineRequest(), running.clock_ns()).ended("completed")
    assert running.stop(WAIT_S)
    assert running.dropped == 0
