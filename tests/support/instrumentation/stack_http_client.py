"""Raw server-sent events over `http.client` in the matrix: requests, urllib3 and urllib.request."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from typing import Any, ClassVar

import requests
import urllib3
from support.instrumentation.stack_sse import BODY, RawChat
from support.patience import WAIT_S

JSON = {"Content-Type": "application/json"}


class OverHttpClient(RawChat):
    modes = ("sync",)


class RequestsLines(OverHttpClient):
    """`requests.Session.post(..., stream=True)` and `iter_lines`."""

    name = "requests"

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        with requests.Session() as session:
            yield session, url

    def open(self, client: Any) -> Any:
        session, url = client
        response = session.post(f"{url}/chat/completions", json=BODY, stream=True, timeout=WAIT_S)
        response.raise_for_status()
        return response

    def items(self, stream: Any) -> Iterator[Any]:
        lines: Iterator[Any] = stream.iter_lines(chunk_size=None)
        return lines

    def closed(self, stream: Any) -> object:
        return stream.raw.closed


class Urllib3Pieces(OverHttpClient):
    """`PoolManager.request(..., preload_content=False)` and `stream`."""

    name = "urllib3"

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        with urllib3.PoolManager(timeout=WAIT_S, retries=False) as pool:
            yield pool, url

    def open(self, client: Any) -> Any:
        pool, url = client
        body = json.dumps(BODY).encode()
        return pool.request("POST", f"{url}/chat/completions", body=body, headers=JSON, preload_content=False)

    @contextlib.contextmanager
    def entered(self, client: Any) -> Iterator[Any]:
        with self.open(client) as response:
            yield response

    def items(self, stream: Any) -> Iterator[Any]:
        pieces: Iterator[Any] = stream.stream()
        return pieces

    def closed(self, stream: Any) -> object:
        return stream.closed


class UrllibLines(OverHttpClient):
    """`urllib.request.urlopen` and its lines."""

    name = "urllib.request"
    # The response is its own iterator: that a loop was left does not show, and its end is that of the response.
    outcomes: ClassVar[dict[str, str]] = {"caller, no with": "abandoned"}

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        yield url

    def open(self, client: Any) -> Any:
        question = urllib.request.Request(f"{client}/chat/completions", json.dumps(BODY).encode(), JSON)
        return urllib.request.urlopen(question, timeout=WAIT_S)

    def items(self, stream: Any) -> Iterator[Any]:
        return iter(stream)

    def closed(self, stream: Any) -> object:
        return stream.isclosed()


STACKS = [RequestsLines(), Urllib3Pieces(), UrllibLines()]
