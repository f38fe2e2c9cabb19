"""A rule aborts a request of a real vLLM, and sees in the stream that it did."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from support.actions.acting import acting, post_raw, records
from support.commands import Collector, collector, wait_until
from support.integration.vllm_server import TOKENS_A_CHUNK, VllmServer
from support.patience import WAIT_S

pytestmark = pytest.mark.alone

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
      ttl: 60s
      budget: {per_request: 1}
"""
LONG = 16_000
"""Half a minute of this model's tokens. If vLLM takes every core, each step to the abort (an export, its answer, the
decision, the request to abort) has waited up to two seconds for one; a reply of two seconds was over by then."""


def stream(url: str, kind: str, trace_id: str) -> tuple[str | None, int]:
    """Ask for a long reply; return why it ended, and after how many chunks."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=WAIT_S) as client:
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


def outcomes(folder: Path) -> dict[str, tuple[str, str]]:
    """Return what became of each abort, by trace id."""
    return {one["trace_id"]: (one["outcome"], one["detail"]) for one in records(folder, "abort")}


@pytest.fixture
def acting_on(
    recording_vllm: tuple[VllmServer, VllmServer], middleware: bool, tmp_path: Path
) -> Iterator[tuple[Collector, VllmServer]]:
    """Give a collector and the server that it acts on: it gets what the server records from now on."""
    both, alone = recording_vllm
    server = both if middleware else alone
    engine = f"tiny: {{kind: vllm, instances: {{'*': 'http://127.0.0.1:{server.port}'}}}}"
    files = acting(tmp_path, RULES, f"actions: {{wedge_timeout: 30s, engines: {{{engine}}}}}\n")
    with collector(tmp_path, *files) as running, ExitStack() as after:
        server.received.hand_on = partial(post_raw, running)
        after.callback(setattr, server.received, "hand_on", None)
        yield running, server


@pytest.mark.parametrize("middleware", [False, True])
def test_a_request_is_aborted_and_its_stream_confirms_it(
    acting_on: tuple[Collector, VllmServer], middleware: bool, tmp_path: Path
) -> None:
    running, server = acting_on
    aborted = []
    for kind in ("chat", "completion"):
        trace_id = uuid.uuid4().hex
        reason, chunks = stream(server.url, kind, trace_id)
        assert reason == "abort", (reason, chunks, server.log()[-3000:])
        assert 20 < chunks * (1 if middleware else TOKENS_A_CHUNK) < LONG
        aborted.append(trace_id)
        wait_until("the abort is recorded", lambda: {*aborted} <= outcomes(tmp_path).keys())
    status, said = running.stop()
    assert status == 0, said
    found = [outcomes(tmp_path)[trace_id] for trace_id in aborted]
    # The engine knows that it was aborted; the middleware reads the finish reason, that of a reply that failed.
    told = ("done", f"the stream ended as {'error' if middleware else 'cancelled'}")
    assert found == [told, told]
