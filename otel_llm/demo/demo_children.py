"""The processes of the demo on this machine: a collector, paced servers, real vLLM servers; each on its own ports."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Final

from otel_llm.core.compiling import kernel_cache, mode
from otel_llm.demo.children import Child

START_S: Final = 90.0
"""How long a collector may start: one that cannot cache its kernels compiles them at every start."""
VLLM_START_S: Final = 240.0
LISTENING: Final = r"OTLP/gRPC (\S+), OTLP/HTTP (\S+), web (\S+)"
PATIENT: Final = Path(__file__).parent / "patient_yield"
"""First in a vLLM's PYTHONPATH, it keeps the engine from starving the processes beside it."""
OFFLINE: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def collector(folder: Path) -> Child:
    """Start a collector with its journal, decisions and log in a folder; its output then matches LISTENING."""
    command = [
        *(sys.executable, "-m", "otel_llm.cli.main", "collect"),
        *("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--web", "127.0.0.1:0"),
        *("--journal", str(folder / "journal"), "--decisions", str(folder / "decisions.jsonl"), "--verdicts", "all"),
    ]
    return Child("collector", command, quiet_environment(), folder / "collector.log")


def paced_server(log: Path, *options: str) -> Child:
    """Start a server of scripted replies."""
    command = [sys.executable, "-m", "otel_llm.demo.paced_server", "--port", "0", *options]
    return Child("server", command, quiet_environment(), log)


def paced_url(server: Child) -> str:
    """Return the base URL of a paced server once it serves."""
    return server.wait_for(r"(http://\S+/v1)", START_S).group(1)


def vllm_server(log: Path, vllm: Path) -> Child:
    """Start a vLLM of the environment's tiny model."""
    return Child("vLLM server", vllm_command(vllm, _free_port()), quiet_environment() | vllm_environment(), log)


def vllm_command(vllm: Path, port: int) -> list[str]:
    """Return the command of a vLLM that serves an environment's tiny model."""
    return [
        *(str(vllm / "bin" / "vllm"), "serve", str(vllm / "tiny"), "--served-model-name", "tiny"),
        # In bfloat16 the best two tokens often tie, and a greedy reply then depends on the other streams of the batch.
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--max-model-len", "512", "--max-num-seqs", "16", "--enforce-eager"),
    ]


def vllm_environment() -> dict[str, str]:
    """Return the variables of a vLLM that uses no network and yields to the processes beside it."""
    paths = os.pathsep.join([str(PATIENT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return OFFLINE | {"PYTHONPATH": paths}


def vllm_url(server: Child) -> str:
    """Return the base URL of a vLLM once it serves."""
    port = server.command[server.command.index("--port") + 1]
    server.wait_for(r"Application startup complete", VLLM_START_S)
    return f"http://127.0.0.1:{port}/v1"


def telemetry(grpc: str, service: str) -> dict[str, str]:
    """Return the environment of an application that exports to a collector."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{grpc}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_SERVICE_NAME": service,
    }


def quiet_environment() -> dict[str, str]:
    """Return the environment without the caller's own telemetry settings: the demo uses only its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OTEL_") or name in (mode.VARIABLE, kernel_cache.VARIABLE)
    }
    return kept | {"PYTHONUNBUFFERED": "1"}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert isinstance(port, int)  # noqa: S101
    return port
