"""Against the real transformers, on a tiny random model: every token that it makes is recorded, and nothing changes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.requirements import VLLM, require

from otel_llm import semconv
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.otlp.export_request import decode, parse

SCRIPT = Path(__file__).parents[1] / "support" / "instrumentation" / "transformers_streams.py"


class Run:
    """What the script left: the truth by scenario, and the rows that were recorded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.truth: dict[str, Any] = json.loads((folder / "truth.json").read_text(encoding="utf-8"))

    def rows(self, scenario: str) -> list[Assembled]:
        assembler = Assembler()
        assembler.add(decode(parse((self.folder / f"{scenario}.pb").read_bytes())))
        return sorted(assembler.finish(), key=lambda row: (row.resolved.commit_ns or 0, row.resolved.choice or 0))

    def row(self, scenario: str) -> Assembled:
        [only] = self.rows(scenario)
        return only


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    require("vllm")
    folder = tmp_path_factory.mktemp("transformers")
    done = subprocess.run(
        [str(VLLM / "bin" / "python"), "-P", str(SCRIPT), str(VLLM / "tiny"), str(folder)],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Run(folder)


def checked(row: Assembled, tokens: int, outcome: str = "completed") -> None:
    assert row.tokens == tokens
    assert row.resolved.outcome == outcome
    assert row.resolved.measured_at == "server"
    assert row.resolved.token_basis == "exact"
    assert row.resolved.coverage == 1.0


@pytest.mark.parametrize("scenario", ["iterator", "same", "printed", "awaited"])
def test_each_token_of_a_streamer_is_recorded_and_the_prompt_is_none(run: Run, scenario: str) -> None:
    row = run.row(scenario)
    checked(row, run.truth[scenario]["tokens"])
    assert row.resolved.input_tokens == run.truth["prompt"]
    assert row.times_ns[0] < row.times_ns[-1]


def test_the_caller_gets_what_bare_transformers_gives(run: Run) -> None:
    bare, same = run.truth["bare"], run.truth["same"]
    assert (same["ids"], same["text"]) == (bare["ids"], bare["text"])
    assert same["put"] is False, "something was left on the caller's streamer"
    assert run.truth["undone"] is True
    assert run.truth["instrumented"] is False


def test_a_streamer_that_raises_is_an_error_and_raises_the_same(run: Run) -> None:
    assert run.truth["broken"]["raised"] == "no more"
    # The prompt, two tokens that were streamed, and the one at which the streamer raised: that was made, too.
    checked(run.row("broken"), 3, "error")


def test_continuous_batching_is_counted_request_by_request(run: Run) -> None:
    truth = run.truth["batched"]
    assert truth["counts"] == truth["wanted"]
    rows = run.rows("batched")
    assert {row.resolved.attributes[semconv.GEN_AI_REQUEST_ID]: row.tokens for row in rows} == truth["wanted"]
    for row in rows:
        checked(row, truth["wanted"][row.resolved.attributes[semconv.GEN_AI_REQUEST_ID]])
        assert row.resolved.input_tokens == run.truth["prompt"]
        assert row.resolved.queue_s is not None
        ttft_s = (row.times_ns[0] - (row.resolved.commit_ns or 0)) / 1e9
        assert 0 <= row.resolved.queue_s <= ttft_s
        assert row.resolved.attributes[semconv.GEN_AI_REQUEST_STREAM] is (row.tokens % 2 == 0)


def test_a_request_that_is_cancelled_is_a_cancelled_row(run: Run) -> None:
    left, stays = run.rows("cancelled")
    assert run.truth["cancelled"]["seen"] <= left.tokens < 800
    checked(left, left.tokens, "cancelled")
    checked(stays, 4)
    assert run.truth["cancelled"]["kept"] == 0, "requests that ended are still kept"


def test_several_sequences_of_one_request_are_its_choices(run: Run) -> None:
    rows = run.rows("offline")
    assert sorted(run.truth["offline"]["counts"].values()) == [30] * 4
    assert sorted((row.resolved.attributes[semconv.GEN_AI_REQUEST_ID], row.resolved.choice) for row in rows) == [
        ("req_0", 0),
        ("req_0", 1),
        ("req_1", 0),
        ("req_1", 1),
    ]
    for row in rows:
        checked(row, 30)


def test_a_request_that_the_engine_refuses_is_an_error(run: Run) -> None:
    assert run.truth["refused"]["error"] is True
    row = run.row("refused")
    checked(row, 0, "error")
    assert row.resolved.attributes[semconv.ERROR_TYPE] == "ValueError"
