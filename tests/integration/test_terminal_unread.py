"""A collector whose terminal is a pipe that nobody reads goes on following streams."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
from support.commands import environment, wait_until
from support.integration.interop_service import Service
from support.integration.interop_wire import export_request, segment
from support.patience import WAIT_S

STREAMS = 3_000
"""Their lines are several times what a pipe holds."""


def test_lines_that_nobody_reads_hold_no_stream_up(tmp_path: Path) -> None:
    running = Service(tmp_path)
    grpc, http, web = (f"127.0.0.1:{port}" for port in running.ports)
    command = [sys.executable, "-m", "otel_llm.cli.main", "collect", "--journal", str(running.journal)]
    command += ["--grpc", grpc, "--http", http, "--web", web, "--verdicts", "all", "--lateness", "100ms"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            assert process.stdout is not None
            while b"listening" not in process.stdout.readline():  # and nothing after that
                assert process.poll() is None
            now_ns = time.time_ns()
            none = np.array([], dtype=np.int64)
            spans = []
            for _ in range(STREAMS):
                trace_id, span_id = os.urandom(16), os.urandom(8)
                end: dict[str, str | int] = {
                    "otel_llm.outcome": "completed",
                    "otel_llm.tokens": 0,
                    "otel_llm.segments": 2,
                }
                spans.append(segment(trace_id, span_id, 0, 0, now_ns, now_ns, none, {"gen_ai.request.model": "m" * 50}))
                spans.append(segment(trace_id, span_id, 1, 0, now_ns, now_ns + 10**6, none, end))
            headers = {"Content-Type": "application/x-protobuf"}
            ask = urllib.request.Request(f"http://{http}/v1/traces", export_request("one", spans), headers)
            urllib.request.urlopen(ask, timeout=WAIT_S).read()
            wait_until("all are judged", lambda: running.metric("otel_llm_requests_total") == STREAMS)
        finally:
            process.kill()
