"""The clients in turns against one real vLLM on the CPU: the same arrivals, lengths and number of requests."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench_load.truth_comparison import OURS
from support.integration.vllm_server import LONG_CONTEXT, VllmServer

from bench_peers_parts.clients import PEERS, VLLM_BENCH, Load, aiperf, otel_llm_bench, vllm_bench
from bench_peers_parts.figures import Figures, own_of_aiperf, own_of_vllm, recorded
from otel_llm.bench.client.learning import learn
from otel_llm.bench.client.target import Target
from otel_llm.bench.plan.prompts import Prompts, PromptSpec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

HEADINGS = ("TTFT p50, ms", "TTFT p99, ms", "ITL p50, ms", "ITL p99, ms", "TPOT p50, ms", "tokens/s")
DEFINITIONS = f"""\
Where the definitions differ:

- TTFT: ours begins at the intended time. That of `{VLLM_BENCH}` begins when the request is sent; the audit adds the
  client's queue (`queue_times`). That of AIPerf begins with the HTTP request; the audit begins with the credit
  (`credit_issued_ns`), from where the request still has to reach a worker.
- ITL: the gaps between chunks. AIPerf's `inter_chunk_latency` leaves out chunks without text, as a token of half a
  character has none; ours counts tokens by the server's usage, `{VLLM_BENCH}` every chunk. The audit takes a chunk of
  AIPerf's for a token, so its TPOT and tokens/s of AIPerf's file are of chunks.
- TPOT: (last token - first token) / (tokens - 1) with all three; AIPerf calls it "inter token latency".
- tokens/s: the audit divides by the time from the first commit to the last end. That of both peers begins one arrival
  earlier: their first request waits for 1 / rate.
"""


class Round(NamedTuple):
    """One run of one client: its own figures (None: they are the audit's), those of the audit, and the load."""

    own: Figures | None
    audited: Figures
    off_ms: float
    input_tokens: float
    chunks: float
    completed: int
    valid: bool | None


def compare(options: argparse.Namespace) -> dict[str, list[Round]]:
    """Run every client in each round, in a drawn sequence; return the rounds by client."""
    found: dict[str, list[Round]] = {name: [] for name in (OURS, *PEERS)}
    with (
        tempfile.TemporaryDirectory() as work,
        VllmServer(Path(work) / "vllm.log", "--no-enable-prefix-caching", *LONG_CONTEXT) as one,
    ):
        url = one.url.removesuffix("/v1")
        spec = PromptSpec(options.seed)
        learned = learn(Target.read(url, model="tiny", api="completions"), spec)
        prompts = Prompts(PromptSpec(options.seed, learned.lengths))
        for number in range(-1, options.rounds):  # the first is of ours alone, and warms up the engine
            first = (number + 1) * options.requests
            texts = [prompts.text(first + place, options.input) for place in range(options.requests)]
            load = Load(url, "tiny", "completions", options.rate, texts, options.output)
            names = [OURS] if number < 0 else Random(options.seed + number).sample(list(found), len(found))
            for name in names:
                folder = Path(work) / f"{number}-{name.replace(' ', '-')}"
                folder.mkdir()
                done = served(name, load, folder, options.input, options.seed + number + 1)
                if number >= 0:
                    found[name].append(done)
                    print(f"round {number + 1}, {name}: {done}", flush=True)
    return found


def served(name: str, load: Load, folder: Path, input_tokens: int, seed: int) -> Round:
    """Run one client; return its figures."""
    own, valid = None, None
    if name == OURS:
        result, path = otel_llm_bench(load, folder, input_tokens, seed)
        valid = bool(result["valid"])
    elif name == VLLM_BENCH:
        path = vllm_bench(load, folder)
        own = own_of_vllm(path)
    else:
        path = aiperf(load, folder)
        own = own_of_aiperf(path)
    read = recorded(path)
    completed = [one for one in read.streams if one.outcome == "completed"]
    prompt = mean(one.input_tokens for one in completed if one.input_tokens is not None)
    chunks = mean(len(one.times_ns) for one in completed)
    return Round(own, read.figures(), read.off_ms(load.rate), prompt, chunks, len(completed), valid)


def rows_of(found: Mapping[str, Sequence[Round]]) -> dict[str, list[Figures]]:
    """Return the figures of the rounds by row of the table."""
    rows: dict[str, list[Figures]] = defaultdict(list)
    for name, rounds in found.items():
        for one in rounds:
            if one.own is not None:
                rows[f"{name}, its own"].append(one.own)
            rows[name if one.own is None else f"{name}, by the audit"].append(one.audited)
    return dict(rows)


def page(found: Mapping[str, Sequence[Round]], options: argparse.Namespace) -> str:
    """Return the tables, ready for the documentation."""
    rows = rows_of(found)
    lines = [
        f"{options.requests} requests, {options.rate:g}/s, constant; tokens: {options.input} in, {options.output} out.",
        f"Medians of {options.rounds} rounds (least to most).",
        "",
        f"| client | {' | '.join(HEADINGS)} |",
        f"|---|{'---|' * len(HEADINGS)}",
        *(f"| {name} | {' | '.join(cells(rounds))} |" for name, rounds in rows.items()),
        "",
        *(agreement(name, rounds, rows[OURS]) for name, rounds in rows.items() if name != OURS),
        *(f"- {name}: {load_words(rounds)}" for name, rounds in found.items()),
        "",
        DEFINITIONS,
    ]
    return "\n".join(lines)


def cells(rounds: Sequence[Figures]) -> list[str]:
    """Return a cell for each figure: median, least and most."""
    return [f"{median(one):.4g} ({min(one):.4g} to {max(one):.4g})" for one in zip(*rounds, strict=True)]


def agreement(name: str, theirs: Sequence[Figures], ours: Sequence[Figures]) -> str:
    """Return a line that says which figures agree: the ranges of the rounds overlap."""
    apart = [
        f"{heading.partition(',')[0]} ({median(other) / median(own) - 1:+.1%})"
        for heading, own, other in zip(HEADINGS, zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)
        if max(own) < min(other) or max(other) < min(own)
    ]
    words = "all agree with ours" if not apart else f"all agree with ours but {', '.join(apart)}"
    return f"- {name}: {words} (ranges of the rounds overlap)"


def load_words(rounds: Sequence[Round]) -> str:
    """Return the load that a client put on, in words."""
    off = max(one.off_ms for one in rounds)
    tokens = median(one.input_tokens for one in rounds)
    chunks = median(one.chunks for one in rounds)
    fewest = min(one.completed for one in rounds)
    words = f"commits at most {off:.1f} ms off, prompts of {tokens:.0f} tokens, {chunks:.1f} times a reply"
    words += f", {fewest} completed"
    if rounds[0].valid is not None:
        words += f", valid in {sum(one.valid is True for one in rounds)} of {len(rounds)} rounds"
    return words


def as_json(found: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    """Return the rounds as JSON values."""
    return {
        name: [
            one._asdict() | {"own": None if one.own is None else one.own._asdict(), "audited": one.audited._asdict()}
            for one in rounds
        ]
        for name, rounds in found.items()
    }
