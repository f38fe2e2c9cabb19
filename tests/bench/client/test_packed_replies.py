"""A server that packs 8 tokens a chunk: `bench` and an instrumented application say the same of its replies."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bench.replies import HEAD, event, exchanged, framed
from support.instrumentation.cut_replies import cut, paced, truth
from support.sse_server import chunk, usage

from otel_llm.audit.load import load
from otel_llm.bench.client.target import Target
from otel_llm.bench.recording.run_journal import RequestRecords, RunJournal
from otel_llm.shared.clock import FakeClock


@pytest.mark.parametrize("name", ["English", "German", "Chinese", "Python"])
@pytest.mark.parametrize("gap_s", [0.2, 1.2, 2.5])
def test_a_packed_reply_is_judged_by_its_tokens(name: str, gap_s: float, tmp_path: Path) -> None:
    chunks = paced(cut(name, "o200k", 400, (8,)), 0.4, (gap_s,))
    stated = usage(sum(one.tokens for one in chunks))
    events = [(one.at_ns, event(chunk({"content": one.text}))) for one in chunks]
    events += [(chunks[-1].at_ns, event(one)) for one in (chunk(finish="stop"), stated, b"[DONE]")]
    reads = [(0, HEAD), *((at_ns, framed(data)) for at_ns, data in events), (chunks[-1].at_ns, b"0\r\n\r\n")]
    records = RequestRecords(Target.read("http://127.0.0.1:8000", model="m"), "chat", FakeClock())
    with RunJournal(tmp_path / "run", records) as journal:
        journal.write(exchanged(reads))
    [row] = load(tmp_path / "run").rows
    felt = truth(chunks)
    assert (row["tokens"], row["token_basis"]) == (felt.tokens, "estimated")
    assert row["met"] is felt.met
    assert row["idle_s"] == pytest.approx(felt.idle_s, rel=0.1, abs=0.2)
