"""A receiver that sends us elsewhere, or is another than it says: no signature and no token goes there."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.collector.tls_files import authority, signed
from support.patience import WAIT_S

from otel_llm.actions.delivery.http_request import NoAnswerError, send_request
from otel_llm.cli.web_client import Source, UnexpectedError
from otel_llm.collector.export.egress import sender_to
from otel_llm.config.otlp_target import Headers, OtlpTarget
from otel_llm.export.settings import OtlpSettings
from otel_llm.export.transport.http import HttpSender

SECRET = "a-secret-of-this-test"


class Server(ThreadingHTTPServer):
    """Answer everything with a status and a Location, and keep the paths that were asked for."""

    def __init__(self, status: int, location: str = "", context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = status
        self.location = location
        self.came: list[str] = []
        self.context = context

    def get_request(self) -> tuple[socket.socket, object]:
        made, address = super().get_request()
        return (made, address) if self.context is None else (self.context.wrap_socket(made, server_side=True), address)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client may go away."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def handle_one_request(self) -> None:
        with suppress(OSError):
            super().handle_one_request()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.came.append(f"{self.path} {self.headers}")
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - its name for the other method

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def by_a_webhook(url: str, _: Path) -> None:
    answer = send_request("POST", f"{url}/hook", {"webhook-signature": SECRET}, b"{}", WAIT_S)
    assert not answer.ok


def by_forward(url: str, _: Path) -> None:
    sender = sender_to(OtlpTarget(endpoint=url, protocol="http/protobuf", headers=Headers((("api-key", SECRET),))))
    assert sender.send(b"", WAIT_S).verdict == "refused"
    sender.close()


def by_the_recorder(url: str, _: Path) -> None:
    sender = HttpSender(OtlpSettings("http/protobuf", f"{url}/v1/traces", headers=(("api-key", SECRET),)))
    assert sender.send(b"").verdict == "refused"
    sender.close()


def by_top(url: str, folder: Path) -> None:
    (folder / "token").write_text(SECRET)
    with pytest.raises(UnexpectedError, match="answers 30"):
        Source(url, token_file=folder / "token").streams()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("send", [by_a_webhook, by_forward, by_the_recorder, by_top])
def test_a_redirect_takes_no_secret_elsewhere(tmp_path: Path, status: int, send: Callable[[str, Path], None]) -> None:
    with serving(Server(200)) as elsewhere:
        for host in ("localhost", "127.0.0.1"):
            with serving(Server(status, f"http://{host}:{elsewhere.server_port}/v1/streams")) as asked:
                send(f"http://127.0.0.1:{asked.server_port}", tmp_path)
                assert len(asked.came) == 1
                assert SECRET in asked.came[0]
    assert elsewhere.came == []


def test_top_reads_no_answer_without_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            made, _ = listener.accept()
            with made, suppress(OSError):
                made.recv(65536)
                made.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    made.sendall(b" " * 65536)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UnexpectedError, match="an answer of more than 1048576 bytes"):
            Source(f"http://127.0.0.1:{listener.getsockname()[1]}", most_bytes=2**20).streams()
        thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize(("by", "trusted", "says"), [("two", "one", "not trusted"), ("one", "one", None)])
def test_a_receiver_of_the_wrong_authority_gets_nothing(by: str, trusted: str, says: str | None) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = signed("server" if by == "one" else "later", by)
    context.load_cert_chain(pair.certificate, pair.key)
    with serving(Server(200, context=context)) as receiver:
        url = f"https://localhost:{receiver.server_port}/hook"
        headers = {"webhook-signature": SECRET}
        if says is None:
            assert send_request("POST", url, headers, b"{}", WAIT_S, authority(trusted).certificate).ok
        else:
            for ca in (authority(trusted).certificate, None):
                with pytest.raises(NoAnswerError, match=says) as none:
                    send_request("POST", url, headers, b"{}", WAIT_S, ca)
                assert not none.value.maybe_sent
    assert bool(receiver.came) == (says is None)
