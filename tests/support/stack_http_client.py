"""Raw server-sent events over `http.client` in the matrix: requests, urllib3, urllib.request and a bare connection."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.request
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import urlsplit

import requests
import urllib3
from support.stack_sse import BODY, RawChat

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
        response = session.post(f"{url}/chat/completions", json=BODY, stream=True, timeout=20)
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
        with urllib3.PoolManager(timeout=20, retries=False) as pool:
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


class ByHand(OverHttpClient):
    """What both ways without a third-party package have in common: the response is its own iterator."""

    # Dropping the loop says nothing where the response is its own iterator.
    outcomes: ClassVar[dict[str, str]] = {"caller, no with": "abandoned"}

    def items(self, stream: Any) -> Iterator[Any]:
        return iter(stream)

    def closed(self, stream: Any) -> object:
        return stream.isclosed()


class UrllibLines(ByHand):
    """`urllib.request.urlopen` and its lines."""

    name = "urllib.request"

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        yield url

    def open(self, client: Any) -> Any:
        question = urllib.request.Request(f"{client}/chat/completions", json.dumps(BODY).encode(), JSON)
        return urllib.request.urlopen(question, timeout=20)


class BareLines(ByHand):
    """`http.client.HTTPConnection` and the lines of its response."""

    name = "http.client"

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        yield urlsplit(url).netloc

    def open(self, client: Any) -> Any:
        connection = http.client.HTTPConnection(client, timeout=20)
        connection.request("POST", "/v1/chat/completions", json.dumps(BODY), JSON)
        return connection.getresponse()


STACKS = [RequestsLines(), Urllib3Pieces(), UrllibLines(), BareLines()]
