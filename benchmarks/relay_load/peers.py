"""The relay and its peers as processes: each on one core, in front of one backend, in an environment of its own.

A peer runs as its documentation has it run in production: one process, no telemetry, no log of requests, no limit that
the load would meet. The routers take turns among their workers, here one: their default looks at the prompt's prefix
(vLLM's has the backend render it first), which is placement, and none of what is compared here.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from relay_load import engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HERE: Final = Path(__file__).parents[1]
ENVIRONMENTS: Final = HERE.parent / ".venv-peers"
READY_S: Final = 120.0
"""LiteLLM takes a quarter of a minute of CPU to start."""
RELAY: Final = "relay"
STACKS: Final = tuple(f"{stack}{loop}" for stack in ("bytes", "aiohttp", "httptools") for loop in ("", "+uvloop"))


class NotRunError(Exception):
    """A peer cannot be measured here; says why."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server is started: its command, its port, the distribution that it is, and its environment."""

    command: list[str]
    port: int
    distribution: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


def _python(peer: str) -> str:
    python = ENVIRONMENTS / peer / "bin" / "python"
    if not python.exists():
        raise NotRunError("it is not installed: make relay-peers-env")
    return str(python)


def relay_of(backends: Sequence[str], port: int, folder: Path, web: int = 0, rules: str = "") -> Launch:
    """Return how a relay before backends is started; `rules`: the text of a file of them, "" for the shipped ones."""
    command = [sys.executable, "-m", "otel_llm.cli.main", "relay"]
    command += [part for name, one in zip("ab", backends, strict=False) for part in ("--backend", f"{name}={one}")]
    command += ["--listen", f"127.0.0.1:{port}", "--web", f"127.0.0.1:{web}"]
    if rules:
        (folder / "rules.yaml").write_text(rules)
        command += ["--rules", str(folder / "rules.yaml")]
    exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": backends[0], "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    return Launch(command, port, "otel-llm", exporting, folder)


def litellm_of(backends: Sequence[str], port: int, folder: Path) -> Launch:
    """Follow docs.litellm.ai/docs/proxy/prod, without a database; `openai/` is what its load tests recommend."""
    models = [{"model": f"openai/{engine.MODEL}", "api_base": f"{one}/v1", "api_key": engine.KEY} for one in backends]
    settings = {
        "model_list": [{"model_name": engine.MODEL, "litellm_params": model} for model in models],
        "litellm_settings": {
            "request_timeout": 600,
            "set_verbose": False,
            "telemetry": False,
            "disable_streaming_logging": True,  # otherwise each chunk is handed to callbacks that are not there
        },
        "general_settings": {"master_key": engine.KEY, "disable_spend_logs": True, "disable_error_logs": True},
    }
    path = folder / "litellm.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    command = [_python("litellm"), str(ENVIRONMENTS / "litellm" / "bin" / "litellm"), "--config", str(path)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    variables = {"LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return Launch(command, port, "litellm", variables, folder)


def _router(module: str, warn: str) -> Callable[[str, int, Path], Launch]:
    distribution = module.replace("_", "-")

    def of(backend: str, port: int, folder: Path) -> Launch:
        command = [_python(distribution), "-m", f"{module}.launch_router", "--worker-urls", backend]
        command += ["--policy", "round_robin"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
        return Launch([*command, "--log-level", warn], port, distribution, {}, folder)

    return of


def _stack(name: str) -> Callable[[str, int, Path], Launch]:
    def of(backend: str, port: int, _folder: Path) -> Launch:
        command = [sys.executable, "-m", "relay_load.stacks", name, backend.rpartition(":")[2], str(port)]
        return Launch(command, port, cwd=HERE)

    return of


PEERS: Final[Mapping[str, Callable[[str, int, Path], Launch]]] = {
    "litellm": lambda backend, port, folder: litellm_of([backend], port, folder),
    "sglang-router": _router("sglang_router", "warn"),
    "vllm-router": _router("vllm_router", "warning"),
}
KNOWN: Final = {
    RELAY: lambda backend, port, folder: relay_of([backend], port, folder),
    **PEERS,
    **{name: _stack(name) for name in STACKS},
}


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def version(how: Launch) -> str:
    """Return the version of what is launched, as its own environment has it; empty if it is none of a package."""
    if not how.distribution:
        return ""
    code = f"from importlib.metadata import version; print(version({how.distribution!r}))"
    return subprocess.run([how.command[0], "-c", code], capture_output=True, text=True, check=False).stdout.strip()


@dataclass(slots=True)
class Proxy:
    """A server that runs: its port, and its process, which leads a session of its own."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    version: str = ""

    def stop(self) -> None:
        """End it and what it started."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def spawn(how: Launch, core: int, log: Path) -> subprocess.Popen[bytes]:
    """Start a process on one core, its output in a file."""
    environment = {**os.environ, **how.variables}
    if how.command[0] != sys.executable:
        environment.pop("PYTHONPATH", None)  # of our packages, not of the peer's
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})  # what a thread starts inherits its cores
    try:
        with log.open("wb") as file:
            return subprocess.Popen(
                how.command,
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                cwd=how.cwd,
                env=environment,
                start_new_session=True,
            )
    finally:
        os.sched_setaffinity(0, own)


def launch(name: str, backend: int, folder: Path) -> Launch:
    """Return how the relay or a peer is started before a backend; `folder` is for its files. Raises NotRunError."""
    return KNOWN[name](f"http://127.0.0.1:{backend}", free_port(), folder)


async def start(name: str, how: Launch, core: int, folder: Path) -> Proxy:
    """Start a server on one core and wait until a reply comes from it whole. Raises NotRunError."""
    log = folder / f"{name}.log"
    proxy = Proxy(name, how.port, spawn(how, core, log), version(how))
    try:
        await ready(proxy)
    except NotRunError as reason:
        proxy.stop()
        said = log.read_text(errors="replace").strip().splitlines()
        raise NotRunError(f"{reason}{f'; it said: {said[-1][:300]}' if said else ''}") from None
    except BaseException:
        proxy.stop()
        raise
    return proxy


async def ready(proxy: Proxy) -> None:
    """Wait until a reply comes from a server whole. Raises NotRunError."""
    request, until_s, reply = engine.chat(2, "a prompt"), time.monotonic() + READY_S, engine.Reply(2)
    while time.monotonic() < until_s:
        if proxy.process.poll() is not None:
            raise NotRunError(f"it ended with status {proxy.process.returncode}")
        reading = asyncio.create_task(engine.read(proxy.port, request, 2))
        await asyncio.wait([reading], timeout=5)
        reading.cancel()
        reply = await reading
        if reply.whole:
            return
        await asyncio.sleep(0.3)
    raise NotRunError(f"no reply came through it whole within {READY_S:.0f} s: {reply.trouble or 'tokens are missing'}")
