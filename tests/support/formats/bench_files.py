"""The same requests in the formats in which benchmark tools write them, after the notes on their files.

Written from the other side than the readers are: a request is known here, and put into each format as the tool would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

WALL_NS = 1_700_000_000_000_000_000
UPTIME_NS = 3_000_000_000_000
"""Where the monotonic clock stands when the wall clock reads WALL_NS."""
NS = 1_000_000_000
NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Chunk:
    """One chunk of a reply: when it came (ns after the sending), and how many tokens it held."""

    after_ns: int
    tokens: int = 1


@dataclass(frozen=True)
class Requested:
    """One request that was answered in full: it was sent so long after WALL_NS, and ended with its last chunk."""

    sent_ns: int
    chunks: tuple[Chunk, ...]
    input_tokens: int = 12
    model: str = "m"
    waited_ns: int = 0
    """How long before the sending the client had decided to send it."""

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)

    @property
    def end_ns(self) -> int:
        """When the reply ended, after the sending."""
        return self.chunks[-1].after_ns


def gaps_ns(requested: Requested) -> list[int]:
    return [b.after_ns - a.after_ns for a, b in pairwise(requested.chunks)]


def vllm_run(requests: Sequence[Requested], **more: Any) -> dict[str, Any]:
    count = len(requests)
    return {
        "date": "20260101-120000",
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": None,
        "model_id": "m",
        "tokenizer_id": "t",
        "num_prompts": count,
        "request_rate": "inf",
        "duration": 3.2,
        "completed": count,
        "failed": 0,
        "input_lens": [requested.input_tokens for requested in requests],
        "output_lens": [requested.tokens for requested in requests],
        "ttfts": [requested.chunks[0].after_ns / NS for requested in requests],
        "itls": [[gap / NS for gap in gaps_ns(requested)] for requested in requests],
        "latencies": [requested.end_ns / NS for requested in requests],
        "start_times": [(UPTIME_NS + requested.sent_ns) / NS for requested in requests],
        "queue_times": [requested.waited_ns / NS for requested in requests],
        "generated_texts": ["text"] * count,
        "errors": [""] * count,
        **more,
    }


def vllm(requests: Sequence[Requested]) -> bytes:
    return json.dumps(vllm_run(requests)).encode()


def sglang_run(requests: Sequence[Requested], backend: str = "sglang", **more: Any) -> dict[str, Any]:
    gaps: list[list[float]] = []
    for requested in requests:
        spread: list[float] = []
        for gap, chunk in zip(gaps_ns(requested), requested.chunks[1:], strict=True):
            native = backend == "sglang"
            spread += [gap / NS / chunk.tokens] * chunk.tokens if native else [gap / NS]
        gaps.append(spread)
    return {
        "tag": None,
        "backend": backend,
        "dataset_name": "random",
        "request_rate": 2.0,
        "server_info": {"model_path": "m"},
        "duration": 3.0,
        "completed": len(requests),
        "total_output_tokens_retokenized": sum(requested.tokens for requested in requests),
        "input_lens": [requested.input_tokens for requested in requests],
        "output_lens": [requested.tokens for requested in requests],
        "ttfts": [requested.chunks[0].after_ns / NS for requested in requests],
        "itls": gaps,
        "generated_texts": [".."] * len(requests),
        "errors": [""] * len(requests),
        **more,
    }


def sglang(requests: Sequence[Requested]) -> bytes:
    return json.dumps(sglang_run(requests)).encode() + b"\n"


def sglang_openai(requests: Sequence[Requested]) -> bytes:
    return json.dumps(sglang_run(requests, "sglang-oai-chat")).encode() + b"\n"


def aiperf_metadata(requested: Requested, number: int, **more: Any) -> dict[str, Any]:
    start_ns = WALL_NS + requested.sent_ns
    return {
        "session_num": number,
        "x_request_id": f"request-{number}",
        "credit_issued_ns": start_ns - requested.waited_ns,
        "request_start_ns": start_ns,
        "request_ack_ns": start_ns + 1,
        "request_end_ns": start_ns + requested.end_ns,
        "worker_id": "w",
        "record_processor_id": "p",
        "benchmark_phase": "profiling",
        "was_cancelled": False,
        **more,
    }


def aiperf_record(requested: Requested, number: int = 0, **more: Any) -> dict[str, Any]:
    first_ns = requested.chunks[0].after_ns
    metrics: dict[str, Any] = {
        "time_to_first_token": {"value": first_ns / 1e6, "unit": "ms"},
        "inter_chunk_latency": {"value": [gap / 1e6 for gap in gaps_ns(requested)], "unit": "ms"},
        "request_latency": {"value": requested.end_ns / 1e6, "unit": "ms"},
        "output_sequence_length": {"value": requested.tokens + 3, "unit": "tokens"},
        "usage_completion_tokens": {"value": requested.tokens, "unit": "tokens"},
        "usage_prompt_tokens": {"value": requested.input_tokens, "unit": "tokens"},
    }
    if len(requested.chunks) == 1:
        del metrics["inter_chunk_latency"]
    return {"metadata": aiperf_metadata(requested, number), "metrics": metrics, **more}


def aiperf_records(requests: Sequence[Requested]) -> bytes:
    return _lines(aiperf_record(requested, number) for number, requested in enumerate(requests))


def chat_events(requested: Requested, *, running: bool, last: Mapping[str, Any] = NOTHING) -> list[tuple[int, str]]:
    """Return the events of a reply with when they came: the role at once with the first, the usage with the last.

    `last`: more members of the last chunk.
    """

    def event(delta: Any, **more: Any) -> str:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
        return json.dumps({"object": "chat.completion.chunk", "choices": choices, **more})

    reported = 0
    events = [(requested.chunks[0].after_ns, event({"role": "assistant", "content": ""}))]
    for chunk in requested.chunks:
        reported += chunk.tokens
        usage = {"usage": {"prompt_tokens": requested.input_tokens, "completion_tokens": reported}} if running else {}
        events.append((chunk.after_ns, event({"content": "word \u00e9"}, **usage)))
    usage = {"usage": {"prompt_tokens": requested.input_tokens, "completion_tokens": requested.tokens}}
    return [*events, (requested.end_ns, event(None, **usage, **last)), (requested.end_ns, "[DONE]")]


def aiperf_raw_line(
    requested: Requested, number: int = 0, *, running: bool = True, last: Mapping[str, Any] = NOTHING, **more: Any
) -> dict[str, Any]:
    perf_ns = UPTIME_NS + requested.sent_ns
    return {
        "metadata": aiperf_metadata(requested, number),
        "start_perf_ns": perf_ns,
        "payload": {"model": requested.model, "messages": [], "stream": True},
        "request_headers": {},
        "status": 200,
        "responses": [
            {"perf_ns": perf_ns + after_ns, "packets": [{"name": "data", "value": value}]}
            for after_ns, value in chat_events(requested, running=running, last=last)
        ],
        **more,
    }


def aiperf_raw(requests: Sequence[Requested]) -> bytes:
    # Grouped by processor, not by time.
    return _lines(aiperf_raw_line(requested, number) for number, requested in reversed(list(enumerate(requests))))


def inference_perf_entry(requested: Requested, **more: Any) -> dict[str, Any]:
    start_ns = UPTIME_NS + requested.sent_ns
    stamps = [(start_ns + chunk.after_ns) / NS for chunk in requested.chunks]
    tokens = [stamp for stamp, chunk in zip(stamps, requested.chunks, strict=True) for _ in range(chunk.tokens)]
    return {
        "start_time": start_ns / NS,
        "end_time": (start_ns + requested.end_ns) / NS,
        "request": json.dumps({"model": requested.model, "messages": [], "stream": True}),
        "response": "data: ...",
        "error": None,
        "info": {
            "input_tokens": requested.input_tokens,
            "lora_adapter": None,
            "response_metrics": {
                "output_tokens": requested.tokens,
                "server_usage": {"completion_tokens": requested.tokens},
                "response_chunks": ["{}"] * len(stamps),
                "chunk_times": stamps,
                "output_token_times": tokens,
            },
        },
        **more,
    }


def inference_perf(requests: Sequence[Requested]) -> bytes:
    return json.dumps([inference_perf_entry(requested) for requested in requests], indent=2).encode()


def genai_perf_entry(requested: Requested, last: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    start_ns = WALL_NS + requested.sent_ns
    # A network read ends anywhere: here each event but its last bytes comes with the read before.
    reads: list[tuple[int, str]] = []
    rest = ""
    for after_ns, value in chat_events(requested, running=True, last=last):
        event = f"data: {value}\n\n"
        reads.append((start_ns + after_ns, rest + event[:-1]))
        rest = ""
        reads.append((start_ns + after_ns, event[-1:]))
    return {
        "timestamp": start_ns,
        "sequence_id": 1,
        "request_inputs": {"payload": json.dumps({"model": requested.model, "messages": []})},
        "response_timestamps": [at_ns for at_ns, _ in reads],
        "response_outputs": [{"response": text} for _, text in reads],
    }


def genai_perf(requests: Sequence[Requested]) -> bytes:
    experiment = {
        "experiment": {"mode": "request_rate", "value": 4.0},
        "requests": [genai_perf_entry(requested) for requested in requests],
        "window_boundaries": [WALL_NS],
    }
    tail = {"version": "2.60", "service_kind": "openai", "endpoint": "v1/chat/completions"}
    return json.dumps({"experiments": [experiment], **tail}).encode()


def etalon_file(requests: Sequence[Requested]) -> dict[str, Any]:
    def between(requested: Requested) -> list[float]:
        spread: list[float] = [0] * (requested.chunks[0].tokens - 1)
        for gap, chunk in zip(gaps_ns(requested), requested.chunks[1:], strict=True):
            spread += [gap / NS, *[0] * (chunk.tokens - 1)]
        return spread

    count = len(requests)
    return {
        "num_prompt_tokens": [requested.input_tokens for requested in requests],
        "num_output_tokens": [requested.tokens for requested in requests],
        "num_total_tokens": [requested.tokens + requested.input_tokens for requested in requests],
        "tpot": [0.02] * count,
        "ttft": [requested.chunks[0].after_ns / NS for requested in requests],
        "tbt": [between(requested) for requested in requests],
        "end_to_end_latency": [requested.end_ns / NS for requested in requests],
        "normalized_end_to_end_latency": [0.1] * count,
        "output_throughput": [15.4] * count,
        "deadline_miss_rate": [0] * count,
        "min_tbt_deadline_to_meet": [0.03] * count,
    }


def etalon(requests: Sequence[Requested]) -> bytes:
    return json.dumps(etalon_file(requests)).encode()


def guidellm_entry(requested: Requested, number: int = 0, **more: Any) -> dict[str, Any]:
    start_s = (WALL_NS + requested.sent_ns) / NS
    first_s, end_s = start_s + requested.chunks[0].after_ns / NS, start_s + requested.end_ns / NS
    return {
        "type_": "generative_request_stats",
        "request_id": f"request-{number}",
        "request_args": json.dumps({"body": {"model": requested.model}}),
        "info": {
            "status": "completed",
            "error": None,
            "timings": {
                "targeted_start": start_s - requested.waited_ns / NS,
                "request_start": start_s,
                "first_token_iteration": first_s,
                "first_output_token_iteration": first_s,
                "last_token_iteration": end_s,
                "token_iterations": len(requested.chunks),
                "request_end": end_s,
            },
        },
        "input_metrics": {"text_tokens": requested.input_tokens},
        "output_metrics": {"text_tokens": requested.tokens},
        **more,
    }


def guidellm_report(successful: Sequence[Any], errored: Sequence[Any] = (), incomplete: Sequence[Any] = ()) -> bytes:
    lists = {"successful": list(successful), "errored": list(errored), "incomplete": list(incomplete), "total": None}
    report = {
        "metadata": {"version": 2, "guidellm_version": "0.8.1"},
        "config": {"spec": {"backend": {"kind": "openai_http", "model": "m"}}},
        "benchmarks": [{"type_": "generative_benchmark", "requests": lists}],
    }
    return json.dumps(report).encode()


def guidellm(requests: Sequence[Requested]) -> bytes:
    return guidellm_report([guidellm_entry(requested, number) for number, requested in enumerate(requests)])


WRITERS: dict[str, Callable[[Sequence[Requested]], bytes]] = {
    "vllm": vllm,
    "sglang": sglang,
    "sglang-openai": sglang_openai,
    "aiperf-records": aiperf_records,
    "aiperf-raw": aiperf_raw,
    "inference-perf": inference_perf,
    "genai-perf": genai_perf,
    "etalon": etalon,
    "guidellm": guidellm,
}


def _lines(records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)
