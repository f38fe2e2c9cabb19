"""The profile of engine a: recorded under a ladder of loads by the plugin, fitted by `otel-llm profile fit`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from capacity_cases import CASES, MODEL, ROOT, lengths
from capacity_servers import BATCHED_TOKENS, kv_tokens, serving, vllm_version

from otel_llm.demo.demo_children import LISTENING, START_S, collector, telemetry

if TYPE_CHECKING:
    from capacity_servers import Served

ENGINE: Final = CASES["engine-a-1"]
LEVELS: Final = (1, 2, 4, 8, 16, 24)
"""Requests at once, one level after another: the fit needs batches of all sizes."""
LEVEL_S: Final = 8


def record_and_fit(vllm: Path, work: Path, target: Path) -> None:
    """Serve a ladder with engine a, and write the profile `target`.yaml and its table."""
    journal = work / "journal"
    shutil.rmtree(journal, ignore_errors=True)
    with collector(work) as collecting:
        address = collecting.wait_for(LISTENING, START_S).group(1)
        with serving(ENGINE, vllm, work, telemetry(address, "vllm")) as served:
            for level in LEVELS:
                _load(served, level)
    command = [
        *(sys.executable, "-m", "otel_llm.cli.main", "profile", "fit", str(journal), "--out", str(target)),
        *("--kv-tokens", str(kv_tokens(served.log)), "--max-batch", str(ENGINE.max_num_seqs)),
        *("--max-batched-tokens", str(BATCHED_TOKENS)),
        *("--accelerator", f"one core of {processor()}", "--engine", f"vLLM {vllm_version(vllm)}"),
    ]
    subprocess.run(command, cwd=ROOT, check=True)


def _load(served: Served, level: int) -> None:
    """Keep so many requests under way for some seconds; a run that is not valid serves as well."""
    command = [
        *(sys.executable, "-m", "otel_llm.cli.main", "bench", served.url, "--model", MODEL, *lengths()),
        *("--concurrency", str(level), "--duration", f"{LEVEL_S}s", "--seed", str(level)),
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"the load of {level} at once failed: {' '.join(command)}")


def processor() -> str:
    """Return the processor's name, as Linux has it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "an unknown processor"
