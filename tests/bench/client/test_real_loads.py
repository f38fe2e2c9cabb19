"""Worker processes against real local servers."""

from __future__ import annotations

import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.bench.loads import MODEL, After, client_of, counted, followed, load, plan_of
from support.commands import environment
from support.sse_server import Json, Reply, SseServer, whole

from otel_llm.shared.clock import monotonic_ns

SECOND = 10**9


def test_requests_of_two_workers_are_one_run() -> None:
    with SseServer({MODEL: counted(5)}) as server:
        run = load(server.url, [0.05 * place for place in range(9)], workers=2)
    assert [one.number for one in run.requests] == list(range(9))
    assert {len(one.times_ns) for one in run.requests} == {5}
    assert {one.prompt_tokens for one in run.requests} == {16}
    assert {one.token_basis for one in run.requests} == {"exact"}
    assert len(run.in_flight) == 9


def test_connections_are_used_again() -> None:
    with SseServer({MODEL: counted(1)}) as server, client_of(server.url) as client:
        plan = plan_of([0.0])
        # Each is sent when the one before has ended. An open loop needs as many connections as a slow machine has
        # requests in flight.
        closed = type(plan)(None, plan.input_tokens, plan.output_tokens)
        followed(client.start(closed, concurrency=1, requests=12))
        # One to find the server, two for the questions, and those of the load: a reply says that it is over before
        # its body is, so that the next request may need a second one.
        assert server.connections < 3 + 12 / 2


def test_every_request_has_a_prompt_of_its_own() -> None:
    with SseServer({MODEL: counted(2)}) as server:
        load(server.url, [0.01 * place for place in range(20)])
        prompts = [one["messages"][0]["content"] for one in server.requests]
    assert len({text.split()[0] for text in prompts[-20:]}) == 20
    assert len(set(prompts)) == len(prompts)


def test_two_runs_of_one_client_follow_each_other() -> None:
    with SseServer({MODEL: counted(2)}) as server, client_of(server.url) as client:
        first = followed(client.start(plan_of([0.0, 0.01])))
        second = followed(client.start(plan_of([0.0, 0.01, 0.02])))
    assert [len(first.requests), len(second.requests)] == [2, 3]


def test_a_closed_loop_sends_when_another_has_ended() -> None:
    with SseServer({MODEL: counted(3)}) as server, client_of(server.url) as client:
        plan = plan_of([0.0])
        closed = type(plan)(None, plan.input_tokens, plan.output_tokens)
        run = followed(client.start(closed, concurrency=3, requests=10))
    assert len(run.requests) == 10
    assert max(run.in_flight) <= 2  # others than itself
    assert run.validity().send_lag_ms is None


def test_a_run_that_is_stopped_sends_no_more() -> None:
    with SseServer({MODEL: counted(2)}) as server, client_of(server.url) as client:
        run = client.start(plan_of([0.05 * place for place in range(1000)]))
        while not run.requests:
            run.step(0.1)
        run.stop()
        followed(run)
        assert len(run.requests) < 1000
        assert [one.number for one in run.requests] == list(range(len(run.requests)))
        assert all(one.outcome == "completed" for one in run.requests)
        again = followed(client.start(plan_of([0.0])))
    assert len(again.requests) == 1


def test_a_run_that_is_cancelled_keeps_what_it_has() -> None:
    def slow(_request: Json) -> Reply:
        time.sleep(5)
        return whole(1)

    with SseServer({MODEL: After(counted(2), slow)}) as server, client_of(server.url) as client:
        questions = len(server.requests)
        run = client.start(plan_of([0.0, 0.01, 0.02, *(0.2 * place for place in range(1, 500))]))
        while len(run.requests) < 3:
            run.step(0.1)
        run.cancel("cancelled", "interrupted")
        assert run.finished
        time.sleep(0.5)  # room to send more; what was sent before may reach the server only now
        assert len(server.requests) <= questions + len(run.requests)
    assert {(one.outcome, one.error) for one in run.requests} <= {("cancelled", "interrupted"), ("completed", None)}


def test_a_connection_that_the_server_closed_while_it_was_idle_is_no_error() -> None:
    """Each connection of this server serves one request, and ends when a second one arrives."""
    body = b"".join(
        b"data: " + json.dumps(step).encode() + b"\n\n" for step in counted(2).steps if isinstance(step, dict)
    )
    body += b"data: [DONE]\n\n"
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    class Once(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = self.rfile.readline()
                if not line:
                    return
                head += line
            self.rfile.read(int(re.findall(rb"(?i)content-length: (\d+)", head)[0]))
            self.wfile.write(answer)
            self.rfile.readline()  # of the second request: closed without an answer

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Once) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        run = load(f"http://127.0.0.1:{server.server_address[1]}", [0.0, 0.3, 0.6])
        server.shutdown()
        thread.join()
    assert [one.error for one in run.requests] == [None] * 3


@pytest.mark.alone
def test_a_client_that_was_stopped_says_that_the_run_is_not_valid() -> None:
    with SseServer({MODEL: counted(2)}) as server, client_of(server.url) as client:
        run = client.start(plan_of([0.05 * place for place in range(400)]))
        while len(run.requests) < 5:
            run.step(0.1)
        os.kill(client.pids[0], signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(client.pids[0], signal.SIGCONT)
        sent = len(run.requests)
        while len(run.requests) <= sent + 60:
            run.step(0.1)
        run.stop()
        found = followed(run).validity()
    assert not found.valid
    assert found.send_lag_ms is not None
    assert found.send_lag_ms["max"] > 1000
    assert found.why is not None
    assert "sent late" in found.why
    assert "stood still" in found.why


@contextmanager
def _paced() -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "otel_llm.demo.paced_server", "--port", "0"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.alone
def test_requests_that_a_stopped_server_kept_waiting_are_late() -> None:
    """Coordinated omission: the load goes on while the server stands still, and each wait is counted in full."""
    from otel_llm.bench.client.learning import learn
    from otel_llm.bench.client.load_client import LoadClient
    from otel_llm.bench.client.target import Target
    from otel_llm.bench.plan.prompts import PromptSpec

    with _paced() as (url, pid):
        target = Target.read(url, model="healthy")
        with LoadClient(target, learn(target, PromptSpec(1)), PromptSpec(1)) as client:
            run = client.start(plan_of([0.1 * place for place in range(400)]))
            while len(run.requests) < 5:
                run.step(0.1)
            os.kill(pid, signal.SIGSTOP)
            stopped_ns = monotonic_ns()  # it answers nothing that is sent from here on
            while monotonic_ns() < stopped_ns + 2 * SECOND:
                run.step(0.1)
            resumed_ns = monotonic_ns()
            os.kill(pid, signal.SIGCONT)
            while all(one.intended_ns < resumed_ns for one in run.requests):
                run.step(0.1)
            run.stop()
            followed(run)
    meanwhile = [one for one in run.requests if stopped_ns < one.intended_ns < resumed_ns]
    assert len(meanwhile) >= 19  # 2 s of 10 a second: none was held back
    for one in meanwhile:
        assert one.times_ns[0] - one.intended_ns >= resumed_ns - one.intended_ns
    # They were sent while the server stood still, not when it went on.
    assert sum(one.sent_ns < resumed_ns for one in meanwhile) >= 10
    started_ns = run.started_ns
    places = range(len(run.requests))
    assert [one.intended_ns - started_ns for one in run.requests] == [place * SECOND // 10 for place in places]
