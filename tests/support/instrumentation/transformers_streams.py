"""Runs in the environment that has torch: drives transformers with our hooks; writes what was recorded, and the truth.

    python transformers_streams.py MODEL OUT

leaves `OUT/<scenario>.pb` (an OTLP request with all that was recorded) and `OUT/truth.json`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from transformers import (
    AsyncTextIteratorStreamer,
    AutoModelForCausalLM,
    AutoTokenizer,
    ContinuousBatchingConfig,
    GenerationConfig,
    TextIteratorStreamer,
    TextStreamer,
)

import otel_llm
from otel_llm.instrumentation.engines.transformers import TransformersInstrumentor

MODEL, OUT = sys.argv[1], Path(sys.argv[2])
PROMPT = "def f(x):\n    return x"

tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="sdpa").eval()
inputs = tokenizer(PROMPT, return_tensors="pt")
prompt_ids = inputs["input_ids"][0].tolist()


def asked(new_tokens: int, **more: Any) -> dict[str, Any]:
    return {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, **more}


class BrokenError(RuntimeError):
    pass


class BreaksAfter(TextIteratorStreamer):  # type: ignore[misc]
    left = 3

    def put(self, value: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise BrokenError("no more")
        super().put(value)


def generate(streamer: Any, new_tokens: int) -> Any:
    return model.generate(**inputs, **asked(new_tokens), streamer=streamer)


def bare() -> dict[str, Any]:
    """What transformers gives when nothing records."""
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    ids = generate(streamer, 12)
    return {"ids": ids[0].tolist(), "text": "".join(streamer)}


def iterator() -> dict[str, Any]:
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    thread = threading.Thread(target=generate, args=(streamer, 40))
    thread.start()
    text = "".join(streamer)
    thread.join()
    return {"tokens": 40, "text": text}


def same() -> dict[str, Any]:
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    ids = generate(streamer, 12)
    return {"tokens": 12, "ids": ids[0].tolist(), "text": "".join(streamer), "put": "put" in vars(streamer)}


def printed() -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()):
        ids = generate(TextStreamer(tokenizer), 7)
    return {"tokens": ids.shape[1] - len(prompt_ids)}


def awaited() -> dict[str, Any]:
    async def main() -> str:
        streamer = AsyncTextIteratorStreamer(tokenizer, skip_prompt=True)
        work = asyncio.get_running_loop().run_in_executor(None, generate, streamer, 15)
        text = "".join([piece async for piece in streamer])
        await work
        return text

    return {"tokens": 15, "text": asyncio.run(main())}


def broken() -> dict[str, Any]:
    streamer = BreaksAfter(tokenizer)
    try:
        generate(streamer, 20)
    except BrokenError as error:
        return {"raised": str(error)}
    return {"raised": None}


def config(**more: Any) -> GenerationConfig:
    return GenerationConfig(**{"do_sample": False, "eos_token_id": -1, "pad_token_id": 2, "max_new_tokens": 30, **more})


def small() -> ContinuousBatchingConfig:
    """A cache of a few MB: by default it takes most of the machine's memory."""
    return ContinuousBatchingConfig(block_size=32, num_blocks=64, max_batch_tokens=128)


def batching() -> Any:
    return model.continuous_batching_context_manager(
        generation_config=config(), continuous_batching_config=small(), warmup=False
    )


def batched() -> dict[str, Any]:
    """Continuous batching, streamed to result handlers or not, one of them cancelled."""
    with batching() as manager:
        wanted = {manager.add_request(prompt_ids, max_new_tokens=n, streaming=n % 2 == 0): n for n in (5, 16, 23)}
        counts: dict[str, int] = {}
        while len(counts) < len(wanted):
            result = manager.get_result(timeout=5)
            if result is not None and result.is_finished():
                counts[result.request_id] = len(result.generated_tokens)
    return {"wanted": wanted, "counts": counts}


def cancelled() -> dict[str, Any]:
    with batching() as manager:
        leaves = manager.add_request(prompt_ids, max_new_tokens=800, streaming=True)
        seen = 0
        while seen < 3:
            result = manager.get_result(timeout=5)
            seen = len(result.generated_tokens) if result is not None else seen
        manager.cancel_request(leaves)
        stays = manager.add_request(prompt_ids, max_new_tokens=4)
        while (result := manager.get_result(timeout=5)) is None or result.request_id != stays:
            pass
        kept = dict(vars(manager)["_otel_llm_requests"])
    return {"seen": seen, "kept": len(kept)}


def offline() -> dict[str, Any]:
    results = model.generate_batch(
        inputs=[prompt_ids, prompt_ids[:4]],
        generation_config=config(do_sample=True, num_return_sequences=2),
        continuous_batching_config=small(),
        warmup=False,
    )
    return {"counts": {name: len(result.generated_tokens) for name, result in results.items()}}


def refused() -> dict[str, Any]:
    """A request that the engine cannot serve."""
    with batching() as manager:
        manager.add_request(prompt_ids, max_new_tokens=4, no_such_processor=1)
        result = manager.get_result(timeout=600)  # as support.patience says; this file runs alone
    return {"error": None if result is None else bool(result.error)}


SCENARIOS: tuple[Callable[[], dict[str, Any]], ...] = (
    iterator,
    same,
    printed,
    awaited,
    broken,
    batched,
    cancelled,
    offline,
    refused,
)


def recorded(scenario: Callable[[], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    try:
        yield scenario()
        otel_llm.flush(600)
    finally:
        otel_llm.uninstrument()
    (OUT / f"{scenario.__name__}.pb").write_bytes(encode_spans(exporter.get_finished_spans()).SerializeToString())


def main() -> None:
    truth: dict[str, Any] = {"bare": bare(), "prompt": len(prompt_ids)}
    for scenario in SCENARIOS:
        for said in recorded(scenario):
            truth[scenario.__name__] = said
    truth["undone"] = not hasattr(type(model).generate, "__wrapped__") or "otel_llm" not in str(
        type(model).generate.__code__.co_filename
    )
    truth["instrumented"] = TransformersInstrumentor().is_instrumented_by_opentelemetry
    (OUT / "truth.json").write_text(json.dumps(truth))


if __name__ == "__main__":
    main()
