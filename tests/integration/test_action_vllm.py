"""A rule aborts a request of a real vLLM, and sees in the stream that it did."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import openai
import pytest
from support.commands import collector, wait_until
from support.vllm_server import VllmServer

pytestmark = pytest.mark.vllm

RULES = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: LongEnough
    when: 'tokens > 20'
    max_fact_age: 60s
    actions:
    - abort: {}
      mode: enforce
      ttl: 5s
      budget: {per_request: 1}
"""
LONG = 1_000
TRIES = 20
"""A stream may be over before what its rule decides arrives; then another one is asked for."""


def stream(url: str, kind: str, trace_id: str) -> tuple[str | None, int]:
    """Ask for a long reply; return why it ended, and after how many chunks."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120.0) as client:
        more: dict[str, Any] = {"model": "tiny", "stream": True, "max_tokens": LONG, "extra_body": {"ignore_eos": True}}
        more["extra_headers"] = {"traceparent": f"00-{trace_id}-{1:016x}-01"}
        chunks: Any
        if kind == "chat":
            chunks = client.chat.completions.create(messages=[{"role": "user", "content": "def f(x):"}], **more)
        else:
            chunks = client.completions.create(prompt="def f(x):", **more)
        reason, count = None, 0
        for chunk in chunks:
            for choice in chunk.choices:
                reason, count = choice.finish_reason or reason, count + 1
        return reason, count


@pytest.mark.xfail(reason="open: on a quick machine the abort reaches vLLM when the reply is nearly over", strict=False)
@pytest.mark.parametrize("middleware", [False, True])
def test_a_request_is_aborted_and_its_stream_confirms_it(tmp_path: Path, middleware: bool) -> None:
    server = VllmServer(
        tmp_path / "vllm.log", "--enable-scale-out", "--max-model-len", "1024", plugin=True, middleware=middleware
    )
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "config.yaml").write_text(
        "version: 1\nactions:\n  wedge_timeout: 30s\n  engines:\n"
        f"    tiny: {{kind: vllm, instances: {{'*': 'http://127.0.0.1:{server.port}'}}}}\n"
    )
    written = tmp_path / "decisions.jsonl"
    files = ("--rules", tmp_path / "rules.yaml", "--config", tmp_path / "config.yaml", "--decisions", written)

    def records() -> list[dict[str, Any]]:
        text = written.read_text() if written.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half there
        return [record for line in lines if (record := json.loads(line))["action"] == "abort"]

    with collector(tmp_path, *files) as door:
        server.environment({"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{door.http}"})
        with server:
            aborted = []
            for kind in ("chat", "completion"):
                for _ in range(TRIES):
                    trace_id = uuid.uuid4().hex
                    reason, chunks = stream(server.url, kind, trace_id)
                    if reason == "abort":
                        break
                assert reason == "abort", (reason, chunks, server.log()[-3000:])
                assert 20 < chunks < LONG
                aborted.append(trace_id)
                wait_until("the abort is recorded", lambda: {*aborted} <= {one["trace_id"] for one in records()})
        status, said = door.stop()
    assert status == 0, said
    found = [(record["outcome"], record["detail"]) for record in records() if record["trace_id"] in aborted]
    # The middleware sees vLLM end the reply in good order; that it was aborted only the engine knows.
    told = ("unconfirmed", "the stream ended as completed") if middleware else ("done", "the stream ended as cancelled")
    assert found == [told, told]
