"""The servers of the example: replicas of a real vLLM, each on one core, and the relay before two of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.demo.children import Child
from otel_llm.demo.demo_children import (
    START_S,
    quiet_environment,
    vllm_command,
    vllm_environment,
    vllm_url,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from capacity_cases import Case

BATCHED_TOKENS: Final = 512
SHAPE: Final = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
}
"""Random weights: twelve layers keep the core busy for some ms a step, so that the engine is measured, not HTTP."""
OPTIONS: Final = (
    *("--load-format", "dummy", "--hf-overrides", json.dumps(SHAPE), "--max-model-len", "4096"),
    *("--max-num-batched-tokens", str(BATCHED_TOKENS), "--no-enable-prefix-caching"),
)
ENVIRONMENT: Final = {
    "VLLM_PLUGINS": "",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120",  # a connection that it closes while a request is on its way fails that one
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # taskset does it
    "OMP_NUM_THREADS": "1",
}
RECORDED: Final = ("--middleware", "otel_llm.instrumentation.asgi.StreamMiddleware")
PLUGIN: Final = {"VLLM_PLUGINS": "otel-llm-vllm"}


@dataclass(frozen=True, slots=True)
class Served:
    """Servers that run: the URL for clients, the command lines, the cores of the replicas and those of all else."""

    url: str
    commands: Sequence[str]
    cores: Sequence[int]
    others: Sequence[int]
    log: Path


@contextmanager
def serving(case: Case, vllm: Path, work: Path, sent: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Start the replicas of a case and, if there are two, the relay; wait until they serve.

    A lone replica has the first core, and this process the second with all that it starts; of two replicas each has a
    core, and the rest shares both with them. With `sent`, the variables of an exporter, the plugin records.
    """
    everywhere = os.sched_getaffinity(0)
    cores = sorted(everywhere)[:2]
    if len(cores) < 2:
        raise SystemExit("this example needs two cores: one for a replica, one for the client")
    mine = cores[: case.replicas]
    others = [core for core in cores if core not in mine] or cores
    os.sched_setaffinity(0, others)
    try:
        with ExitStack() as stack:
            replicas = [stack.enter_context(_replica(case, vllm, work, core, sent)) for core in mine]
            urls = [vllm_url(replica) for replica in replicas]
            commands = [_words(replica.command, vllm) for replica in replicas]
            url = urls[0]
            if len(urls) > 1:
                relay = stack.enter_context(_relay(urls, work))
                url = relay.wait_for(r"relaying (http://\S+) to", START_S).group(1) + "/v1"
                commands.append(_words(relay.command, vllm))
            yield Served(url, commands, mine, others, replicas[0].log)
    finally:
        os.sched_setaffinity(0, everywhere)


def kv_tokens(log: Path) -> int:
    """Return the tokens that the KV cache of a vLLM held, by its log, which is whole once it has stopped."""
    found = re.search(r"KV cache size: ([\d,]+) tokens", log.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"{log}: vLLM did not log the size of its KV cache")
    return int(found.group(1).replace(",", ""))


def vllm_version(vllm: Path) -> str:
    """Return the version of the environment's vLLM."""
    code = "from importlib.metadata import version; print(version('vllm-cpu'))"
    command = [str(vllm / "bin" / "python"), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _replica(case: Case, vllm: Path, work: Path, core: int, sent: Mapping[str, str] | None) -> Child:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [
        *("taskset", "-c", str(core)),
        *(*vllm_command(vllm, port), *OPTIONS, "--max-num-seqs", str(case.max_num_seqs)),
        *(RECORDED if sent else ()),
    ]
    environment = quiet_environment() | vllm_environment() | ENVIRONMENT | (PLUGIN | dict(sent) if sent else {})
    log = work / f"{case.name}-vllm-{core}.log"
    log.unlink(missing_ok=True)
    return Child("vLLM server", command, environment, log)


def _relay(urls: Sequence[str], work: Path) -> Child:
    backends = [f"{name}={url.removesuffix('/v1')}" for name, url in zip("ab", urls, strict=True)]
    command = [
        *(sys.executable, "-m", "otel_llm.cli.main", "relay", "--listen", "127.0.0.1:0", "--web", "127.0.0.1:0"),
        *(word for backend in backends for word in ("--backend", backend)),
    ]
    environment = quiet_environment() | {"OTEL_SDK_DISABLED": "true"}  # no collector listens
    return Child("relay", command, environment, work / "relay.log")


def _words(command: Sequence[str], vllm: Path) -> str:
    """Return a command line as a user would write it."""
    line = shlex.join(command)
    line = line.replace(f"{vllm}/bin/", "").replace(str(vllm / "tiny"), f"{vllm.name}/tiny")
    return line.replace(f"{sys.executable} -m otel_llm.cli.main", "otel-llm")
