"""Real routers drop a worker when they are asked as our adapters ask them, and their own lists say so."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from actions.orders import NOW_NS, order
from support.actions.action_receiver import Came, Receiver, Say, receiving
from support.commands import wait_until
from support.ports import free_ports
from support.requirements import require

from otel_llm.actions.execute.engines import RouterDrain
from otel_llm.actions.execute.executor import Reply


def worker(came: Came, before: int) -> Say:
    """Answer as an engine that routers ask how it is."""
    path = came.path.partition("?")[0]
    if path in ("/server_info", "/get_server_info", "/model_info", "/get_model_info"):
        return Say(200, b'{"model_path":"tiny","served_model_name":"tiny","is_generation":true,"tp_size":1}')
    return Say(200, b"{}")


@contextmanager
def router(module: str, log: Path, *workers: str) -> Iterator[str]:
    port, port_of_metrics = free_ports(2)
    command = [
        *(sys.executable, "-m", f"{module}.launch_router", "--host", "127.0.0.1", "--port", str(port)),
        *("--prometheus-port", str(port_of_metrics), "--worker-urls", *workers),
    ]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=dict(os.environ))
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def listed(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return ""


@pytest.mark.parametrize("module", ["sglang_router", "vllm_router"])
def test_a_drained_worker_leaves_a_real_routers_list_and_the_other_stays(module: str, tmp_path: Path) -> None:
    require("sglang_router") if module == "sglang_router" else require("vllm_router")
    legacy = module == "vllm_router"
    first, second = Receiver(worker), Receiver(worker)
    with receiving(first), receiving(second), router(module, tmp_path / "log", first.url, second.url) as url:
        where = f"{url}/{'list_workers' if legacy else 'workers'}"
        wait_until("both workers are listed", lambda: first.url in (seen := listed(where)) and second.url in seen)
        drain = RouterDrain(url, lambda: None, "tests", worker=first.url, legacy=legacy)
        other = RouterDrain(url, lambda: None, "tests", worker=second.url, legacy=legacy)
        assert drain.check(5.0) is False
        assert drain.attempt(order(action="drain"), NOW_NS, 5.0).result == "accepted"
        wait_until("it is gone", lambda: drain.check(5.0))
        assert other.check(5.0) is False
        again = drain.attempt(order(action="drain"), NOW_NS, 5.0)
        assert again.result in ("done", "accepted")
        if not legacy:
            assert again == Reply("done", "the router has no such worker")
