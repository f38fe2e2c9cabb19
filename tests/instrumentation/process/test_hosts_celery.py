"""Celery's pools: streams are read in forked processes or in greenlets, and a warm shutdown loses none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.hosts.serving import TESTS, eventually
from support.hosts.told import told
from support.otlp_receiver import GrpcReceiver
from support.patience import WAIT_S
from support.sse_server import SseServer, whole

TOKENS = 30


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_warm_shutdown_loses_nothing(pool: str, tmp_path: Path) -> None:
    models = [f"m{number}" for number in range(4)]
    with SseServer({model: whole(TOKENS) for model in models}) as server, GrpcReceiver() as receiver:
        receiver.pause_s = 0.5  # the last segments are still queued when the worker stops
        environment = {
            **os.environ,
            "CELERY_FOLDER": str(tmp_path),
            "GATEWAY_UPSTREAM": server.url,
            "GRPC_VERBOSITY": "NONE",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "PYTHONPATH": str(TESTS),
        }
        celery = [sys.executable, "-m", "celery", "-A", "support.hosts.celery_app"]
        for model in models:
            asked = [*celery, "call", "support.hosts.celery_app.ask", "--args", f'["{model}"]']
            subprocess.run(asked, env=environment, check=True, timeout=WAIT_S, capture_output=True)
        worker = subprocess.Popen(
            [*celery, "worker", "--pool", pool, "--concurrency", "2", "--without-gossip", "--without-mingle"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            eventually(lambda: all((tmp_path / f"done-{model}").exists() for model in models))
            worker.terminate()
            assert worker.wait(WAIT_S) == 0
        finally:
            worker.kill()
            worker.wait()
        assert told(receiver.spans()) == [(model, "completed", TOKENS) for model in models]
