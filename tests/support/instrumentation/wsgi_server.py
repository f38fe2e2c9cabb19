"""A WSGI application on the server of the standard library, a thread for each request."""

from __future__ import annotations

import threading
from socketserver import ThreadingMixIn
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from support.instrumentation.asgi_server import Served
from support.patience import WAIT_S


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def get_stderr(self) -> Any:
        return _Nowhere()


class _Nowhere:
    def write(self, text: str) -> None:
        pass

    def flush(self) -> None:
        pass


class WsgiServer(Served):
    """Runs a WSGI application on a free port, in a thread of its own."""

    def __init__(self, app: Any) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.set_app(app)
        self.port = self._server.server_address[1]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WAIT_S)
