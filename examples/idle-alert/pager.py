"""A pager that prints: a webhook for the collector's signed CloudEvents and for Alertmanager's messages."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from otel_llm.actions.delivery.signing import SignatureError, verify

if TYPE_CHECKING:
    from collections.abc import Mapping

Page = tuple[str, str, str]
"""`firing` or `resolved`, the model, and who sent it: `collector` or `Alertmanager`."""


class Pager:
    """Serve on a free port of this machine, print each page, and keep it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._changed = threading.Condition()
        self._pages: set[Page] = set()
        self._begin_s = time.monotonic()
        pager = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                self.send_response(pager.take(self.path, headers, body))
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print pages only."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, headers: Mapping[str, str], body: bytes) -> int:
        """Print what a message says; return the HTTP status of the answer."""
        if path == "/collector":
            try:
                verify(headers, body, [self._secret], time.time())
            except SignatureError:
                return 401
            self._print("collector", json.loads(body)["data"])
        else:
            for alert in json.loads(body)["alerts"]:
                self._print("Alertmanager", alert)
        return 204

    def _print(self, who: str, alert: dict[str, Any]) -> None:
        labels: dict[str, str] = alert["labels"]
        named = ", ".join(f"{name}={value}" for name, value in labels.items() if name != "alertname")
        with self._changed:
            at = f"{time.monotonic() - self._begin_s:6.1f} s"
            print(f"{at}  {alert['status'].upper():<8}  {labels['alertname']} {{{named}}}  from: {who}")
            print(f"{'':20}{alert['annotations']['summary']}", flush=True)
            self._pages.add((alert["status"], labels["model"], who))
            self._changed.notify_all()

    def wait_for(self, status: str, model: str, senders: set[str], timeout_s: float) -> bool:
        """Wait until each of the senders has sent such a page; return whether they did in time."""
        wanted = {(status, model, who) for who in senders}
        with self._changed:
            return self._changed.wait_for(lambda: wanted <= self._pages, timeout_s)
