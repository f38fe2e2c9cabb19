"""An abort end to end: a real collector asks an engine, and the stream, not the answer, says whether it was done."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from support.actions.acting import acting, post, records
from support.actions.action_receiver import Receiver, receiving
from support.commands import Collector, collector, wait_until
from support.otlp import IDENTITY, request_span, segment_span

from otel_llm import semconv

RULES = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Waiting
    when: 'age_seconds > 0.2'
    max_fact_age: 60s
    actions:
    - abort: {}
      mode: enforce
      ttl: 5s
    - preempt: {}
"""


def written(folder: Path, url: str, wedge: str) -> list[str | Path]:
    engine = f"e: {{kind: vllm, instances: {{a: '{url}', b: '{url}/b'}}}}"
    return acting(folder, RULES, f"actions: {{wedge_timeout: {wedge}, engines: {{{engine}}}}}\n")


def identity(number: int, instance: str) -> dict[str, Any]:
    return {**IDENTITY, semconv.INSTANCE: instance, semconv.GEN_AI_REQUEST_ID: f"chatcmpl-{number}"}


def begin(service: Collector, number: int, instance: str = "a") -> None:
    post(service, segment_span(request=number, start_ns=time.time_ns(), attributes=identity(number, instance)))


def end(service: Collector, number: int, outcome: str, instance: str = "a") -> None:
    now_ns = time.time_ns()
    reported: dict[str, Any] = {
        semconv.OUTCOME: outcome,
        semconv.TOKENS: 0,
        semconv.TOKEN_BASIS: "exact",
        semconv.SEGMENTS: 2,
    }
    last = segment_span(1, 0, request=number, start_ns=now_ns, end_ns=now_ns, attributes=reported)
    whole = request_span(
        request=number, start_ns=now_ns, end_ns=now_ns, attributes={**identity(number, instance), **reported}
    )
    post(service, last, whole)


def found_by_number(folder: Path, action: str = "abort") -> dict[int, dict[str, Any]]:
    return {int(record["trace_id"], 16): record for record in records(folder, action)}


def test_the_stream_says_whether_it_was_done(tmp_path: Path) -> None:
    with receiving(Receiver()) as engine, collector(tmp_path, *written(tmp_path, engine.url, "60s")) as service:
        begin(service, 1)
        wait_until("the first is asked for", lambda: engine.came)
        begin(service, 2)  # the same instance: held back while the first is open
        wait_until("the second is decided", lambda: 2 in found_by_number(tmp_path))
        begin(service, 3, "b")
        wait_until("the third is asked for", lambda: len(engine.came) == 2)
        begin(service, 4, "nowhere")
        wait_until("the fourth is decided", lambda: 4 in found_by_number(tmp_path))
        assert found_by_number(tmp_path).keys() == {2, 4}
        end(service, 1, "cancelled")
        end(service, 3, "completed", "b")
        wait_until("both are confirmed", lambda: found_by_number(tmp_path).keys() == {1, 2, 3, 4})
        begin(service, 5)  # the instance is free again
        wait_until("the fifth is asked for", lambda: len(engine.came) == 3)
        assert service.stop()[0] == 0
    found = found_by_number(tmp_path)
    outcomes = {number: record["outcome"] for number, record in found.items()}
    assert outcomes == {1: "done", 2: "budget", 3: "unconfirmed", 4: "failed", 5: "unconfirmed"}
    assert found[2]["budget"] == {"confirmation": False}
    assert found[3]["detail"] == "the stream ended as completed"
    assert "for instance 'nowhere'" in found[4]["detail"]
    assert found[5]["detail"] == "this process stopped"
    asked = [(came.path, json.loads(came.body)) for came in engine.came]
    assert asked == [
        ("/inference/v1/abort_requests", {"request_ids": ["chatcmpl-1"]}),
        ("/b/inference/v1/abort_requests", {"request_ids": ["chatcmpl-3"]}),
        ("/inference/v1/abort_requests", {"request_ids": ["chatcmpl-5"]}),
    ]
    candidates = {number: record["candidates"] for number, record in found_by_number(tmp_path, "preempt").items()}
    assert candidates[1] == []
    assert [one["trace_id"] for one in candidates[2]] == [f"{1:032x}"]
    assert candidates[2][0]["score"].keys() == {"priority", "runway_seconds"}


def test_what_is_not_seen_in_time_is_unconfirmed_and_lets_the_next_one_go(tmp_path: Path) -> None:
    with receiving(Receiver()) as engine, collector(tmp_path, *written(tmp_path, engine.url, "300ms")) as service:
        begin(service, 1)
        wait_until("it is given up", lambda: 1 in found_by_number(tmp_path))
        begin(service, 2)
        wait_until("the next is given up", lambda: 2 in found_by_number(tmp_path))
        assert service.stop()[0] == 0
    assert [found_by_number(tmp_path)[number]["outcome"] for number in (1, 2)] == ["unconfirmed", "unconfirmed"]
    assert len(engine.came) == 2
