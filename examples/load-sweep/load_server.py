"""A real vLLM on this machine's CPU, with the model of `make_model.py`."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from load_clients import MODEL

from otel_llm.demo.children import Child

MOST_RUNNING: Final = 64
STEP_TOKENS: Final = 512
"""Tokens that one step computes at most, those of prompts and one of each running reply."""
START_S: Final = 300.0
OPTIONS: Final = (
    *("--dtype", "bfloat16", "--max-model-len", "512", "--max-num-seqs", str(MOST_RUNNING)),
    *("--max-num-batched-tokens", str(STEP_TOKENS), "--enforce-eager"),
    # What `batching.py` leaves out.
    *("--no-enable-prefix-caching", "--no-async-scheduling"),
)
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120",  # a connection that it closes while a request is on its way fails that one
    # One thread, on whichever core is free: two that wait for each other stand still when either is taken away.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


def start(environment: Path, model: Path, log: Path) -> tuple[Child, str]:
    """Start the server of a vLLM environment, and make its model if there is none; return it and its base URL."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | ENVIRONMENT
    if not (model / "config.json").exists():
        make = [str(environment / "bin" / "python"), "-P", str(Path(__file__).parent / "make_model.py"), str(model)]
        with Child("model", make, kept, log) as child:
            if child.process.wait() != 0:
                raise child.failure("failed")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [
        *(str(environment / "bin" / "vllm"), "serve", str(model), "--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", str(port), *OPTIONS),
    ]
    server = Child("vLLM server", command, kept, log)
    try:
        server.wait_for(r"Application startup complete", START_S)
    except BaseException:
        server.stop()
        raise
    return server, f"http://127.0.0.1:{port}/v1"
