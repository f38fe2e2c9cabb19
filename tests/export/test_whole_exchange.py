"""A server that drips its answer: every sender over HTTP gives up when its time for the whole exchange is over.

The drips last much longer than that time and then complete the answer: a sender that waits for it takes it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from support.patience import WAIT_S

from otel_llm.actions.delivery.http_request import Answer, NoAnswerError, send_request
from otel_llm.collector.export.egress import sender_to
from otel_llm.config.otlp_target import OtlpTarget
from otel_llm.export.settings import OtlpSettings
from otel_llm.export.transport.http import HttpSender
from otel_llm.export.transport.whole_exchange import MOST_BYTES, bounded_session
from otel_llm.shared.otlp_exporters import log_exporter, metric_exporter

TIME_S = 0.3
DRIPS, DRIP_S = 200, 0.05
"""Ten seconds, each wait of them shorter than the time for all."""
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 200\r\n"
ANSWERS = {
    "status line": (b"HTTP/1.1 200 ", b"O", b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
    "a header": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\nx: ", b"x", b"\r\n\r\n"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    "body": (HEAD + b"\r\n", b" ", b""),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", b"0\r\n\r\n"),
}
HEADLESS = ("status line", "a header", "interim answers")


@contextmanager
def dripping(part: str) -> Iterator[str]:
    """Serve, and drip a part of each answer."""
    before, drip, after = ANSWERS[part]
    over = threading.Event()

    def serve(made: socket.socket) -> None:
        with made, suppress(OSError):
            made.recv(65536)
            made.sendall(before)
            for _ in range(DRIPS):
                if over.wait(DRIP_S):
                    return
                made.sendall(drip)
            made.sendall(after)

    with accepting(serve) as url:
        yield url
        over.set()


@contextmanager
def accepting(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve each connection in a thread."""
    threads = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threads.append(threading.Thread(target=serve, args=(listener.accept()[0],)))
                    threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(WAIT_S)
    for thread in threads:
        thread.join(WAIT_S)


def over_http(url: str) -> OtlpTarget:
    return OtlpTarget(endpoint=url, protocol="http/protobuf", timeout_s=TIME_S)


def by_the_recorder(url: str) -> bool:
    sender = HttpSender(OtlpSettings("http/protobuf", f"{url}/v1/traces", timeout_s=TIME_S))
    return sender.send(b"x").verdict == "accepted"


def by_forward(url: str) -> bool:
    return sender_to(over_http(url)).send(b"x").verdict == "accepted"


def by_the_metrics_exporter(url: str) -> bool:
    reader = InMemoryMetricReader()
    MeterProvider([reader]).get_meter("tests").create_counter("c").add(1)
    data = reader.get_metrics_data()
    assert data is not None
    return metric_exporter(over_http(url)).export(data, timeout_millis=TIME_S * 1e3) is MetricExportResult.SUCCESS


def by_the_logs_exporter(url: str) -> bool:
    return log_exporter(over_http(url)).export([]) is LogRecordExportResult.SUCCESS


@pytest.mark.parametrize("part", ANSWERS)
@pytest.mark.parametrize("send", [by_the_recorder, by_forward, by_the_metrics_exporter, by_the_logs_exporter])
def test_no_exporter_waits_for_an_answer_that_drips(send: Callable[[str], bool], part: str) -> None:
    with dripping(part) as url:
        assert not send(url)


@pytest.mark.parametrize("part", HEADLESS)
def test_a_request_whose_answer_does_not_begin_in_time_may_have_arrived(part: str) -> None:
    with dripping(part) as url, pytest.raises(NoAnswerError, match="no answer in time") as none:
        send_request("POST", url, {}, b"{}", TIME_S)
    assert none.value.maybe_sent
    assert none.value.late


@pytest.mark.parametrize("part", ["body", "chunks"])
def test_a_status_counts_without_its_body(part: str) -> None:
    with dripping(part) as url:
        answer = send_request("POST", url, {}, b"{}", TIME_S)
    assert (answer.status, answer.body) == (200, None)


def test_the_time_is_that_of_one_exchange_not_of_a_connection() -> None:
    """A kept connection whose first answer was in time."""
    before, drip, after = ANSWERS["a header"]
    over = threading.Event()

    def serve(made: socket.socket) -> None:
        with made, suppress(OSError):
            for at in range(3):
                while not made.recv(65536).endswith(b"{}"):
                    pass
                made.sendall(before if at == 2 else b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
            for _ in range(DRIPS):
                over.wait(DRIP_S)
                made.sendall(drip)
            made.sendall(after)

    with accepting(serve) as url, bounded_session() as session:
        for _ in range(2):
            assert session.post(url, b"{}", timeout=WAIT_S).content == b"x"
        with pytest.raises(OSError, match="timed out"):
            session.post(url, b"{}", timeout=TIME_S)
        over.set()


def test_an_endless_head_is_not_read() -> None:
    def serve(made: socket.socket) -> None:
        with made, suppress(OSError):
            made.recv(65536)
            for _ in range(2 * MOST_BYTES // 1024):
                made.sendall(b"HTTP/1.1 100 Continue\r\nx: " + b"x" * 1000 + b"\r\n\r\n")
            made.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with accepting(serve) as url, pytest.raises(NoAnswerError, match="the connection broke"):
        send_request("POST", url, {}, b"{}", WAIT_S)


@contextmanager
def full() -> Iterator[int]:
    """Give the port of a listener that answers no further connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        waiting = []
        with suppress(TimeoutError):
            while True:
                waiting.append(socket.create_connection(("127.0.0.1", port), timeout=0.2))
        yield port
        for one in waiting:
            one.close()


def named(monkeypatch: pytest.MonkeyPatch, *ports: int) -> str:
    """Give a name whose addresses are these ports of this machine."""
    look_up = socket.getaddrinfo

    def found(host: str, *args: Any, **kwargs: Any) -> Any:
        if host != "many.example":
            return look_up(host, *args, **kwargs)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    return "http://many.example/"


def fine(made: socket.socket) -> None:
    with made:
        made.recv(65536)
        made.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")


def test_the_addresses_of_a_name_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with full() as port, accepting(fine) as good:
        url = named(monkeypatch, port, port, int(good.rpartition(":")[2]))
        with pytest.raises(NoAnswerError, match="no connection in time") as none:
            send_request("POST", url, {}, b"{}", TIME_S)
    assert not none.value.maybe_sent
    assert none.value.late


def test_another_address_is_tried_where_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with accepting(fine) as good:
        answer = send_request("POST", named(monkeypatch, port, int(good.rpartition(":")[2])), {}, b"{}", WAIT_S)
    assert answer == Answer(200, b"ok", {"content-length": "2", "connection": "close"})
    with pytest.raises(NoAnswerError, match="no connection") as none:
        send_request("POST", named(monkeypatch, port), {}, b"{}", WAIT_S)
    assert not none.value.maybe_sent


def test_a_handshake_that_does_not_end_sent_nothing() -> None:
    over = threading.Event()

    def serve(made: socket.socket) -> None:
        with made, suppress(OSError):
            made.recv(65536)
            made.sendall(b"\x16\x03\x03\x40\x00")
            for _ in range(DRIPS):
                over.wait(DRIP_S)
                made.sendall(b"\x02")

    with accepting(serve) as url:
        with pytest.raises(NoAnswerError, match="no connection in time") as none:
            send_request("POST", url.replace("http:", "https:"), {}, b"{}", TIME_S)
        over.set()
    assert not none.value.maybe_sent


def test_a_proxy_that_drips_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with dripping("a header") as url:
        monkeypatch.setenv("HTTPS_PROXY", url)
        with pytest.raises(NoAnswerError, match="no connection in time") as none:
            send_request("POST", "https://hooks.example/", {}, b"{}", TIME_S)
    assert not none.value.maybe_sent
