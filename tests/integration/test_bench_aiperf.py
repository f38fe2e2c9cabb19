"""A real AIPerf run against the scripted server: its records and raw records are read, and its figures are ours."""

from __future__ import annotations

import json
import os
from pathlib import Path

from support.bench_tools.running import ran
from support.formats.bench_figures import check_aiperf
from support.formats.bench_read import read
from support.requirements import AIPERF, require
from support.sse_server import DONE, Json, Reply, SseServer, Step, Wait, chunk, usage, usage_of, words

REQUESTS = 6
CHUNKS = 8
PROMPTS = ("one two three", "four five", "six")
FAILING, THINKING, COUNTED, PLAIN = range(4)


def kind_of(number: int) -> int:
    """Return how the server answers its request of this number, from 0: the last one fails."""
    return FAILING if number == REQUESTS - 1 else (THINKING, COUNTED, PLAIN)[number % 3]


def reply(kind: int) -> Reply:
    """Return a paced reply: plain, with thoughts before, with several tokens in a chunk that the server counts."""
    if kind == FAILING:
        return Reply(status=500)
    steps: list[Step] = [chunk({"role": "assistant", "content": ""})]
    if kind == COUNTED:
        told: list[Step] = [chunk({"content": f"w{i} x "}, usage=usage_of(2 * (i + 1))) for i in range(CHUNKS)]
    elif kind == THINKING:
        told = [*(chunk({"reasoning_content": f"t{i} "}) for i in range(2)), *words(CHUNKS - 2)]
    else:
        told = words(CHUNKS)
    together = 2 if kind == PLAIN else 1  # AIPerf then reads two chunks at one instant, as it may under load
    paced = [step for at, one in enumerate(told) for step in ((one,) if at % together else (Wait(0.03), one))]
    tokens = CHUNKS * (2 if kind == COUNTED else 1)
    return Reply([*steps, *paced, chunk(finish="stop"), usage(tokens), DONE])


def profile(folder: Path) -> Path:
    """Run `aiperf profile` with records and raw export against the scripted server; return the folder of results."""
    require("aiperf")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"text": prompt}) + "\n" for prompt in PROMPTS))
    results = folder / "results"
    asked = 0

    def answer(request: Json) -> Reply:
        nonlocal asked
        asked += 1
        return reply(kind_of(asked - 1))

    with SseServer({"m": answer}) as server:
        command = [
            *(str(AIPERF / "bin" / "aiperf"), "profile", "--model", "m", "--url", server.url.removesuffix("/v1")),
            *("--endpoint-type", "chat", "--streaming", "--tokenizer", str(tokenizer(folder / "tokenizer"))),
            *("--input-file", str(prompts), "--custom-dataset-type", "single_turn", "--use-server-token-count"),
            *("--request-count", str(REQUESTS), "--concurrency", "1", "--export-level", "raw"),
            *("--artifact-dir", str(results), "--ui", "none", "--no-server-metrics", "--no-gpu-telemetry"),
        ]
        # With HF_HUB_OFFLINE AIPerf takes a folder's path for a name on the hub.
        environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
        ran(command, folder, environment)
    return results


def tokenizer(folder: Path) -> Path:
    """Write a tokenizer whose tokens are bytes: AIPerf loads one even if the server counts."""
    folder.mkdir()
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}
    vocabulary = {letters[byte]: byte for byte in range(256)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model: Json = {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocabulary, "merges": []}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def test_aiperfs_figures_are_ours(tmp_path: Path) -> None:
    folder = profile(tmp_path)
    paths = [folder / "profile_export.jsonl", folder / "profile_export_raw.jsonl"]
    records, raw = (read(path.read_bytes(), path)[0] for path in paths)
    check_aiperf(folder, records, raw)
    kinds = [kind_of(number) for number in range(REQUESTS)]
    by_start = sorted(raw, key=lambda one: one.resolved.commit_ns or 0)
    assert [one.resolved.outcome == "error" for one in by_start] == [kind == FAILING for kind in kinds]
    tokens = [one.tokens for one in by_start]
    assert tokens == [0 if kind == FAILING else 16 if kind == COUNTED else 8 for kind in kinds]
    assert {one.resolved.model for one in [*records, *raw]} == {"m"}
