"""The server under load: its address, and the requests that it gets."""

from __future__ import annotations

import json
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from otel_llm.export.records import version
from otel_llm.export.settings import without_credentials

if TYPE_CHECKING:
    from collections.abc import Sequence

ApiName = Literal["chat", "completions"]
PATHS: Final[dict[ApiName, str]] = {"chat": "/chat/completions", "completions": "/completions"}
OPERATIONS: Final[dict[ApiName, str]] = {"chat": "chat", "completions": "text_completion"}
_PORTS: Final = {"http": 80, "https": 443}
_PATH: Final = re.compile(r"[\x21-\x7e]*", re.ASCII)
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
"""A `token` of RFC 9110, section 5.6.2."""
_URL_ADVICE: Final = "write it as http://127.0.0.1:8000 or https://api.example.com/v1"


class TargetError(ValueError):
    """The URL or a header cannot be used; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server of one of OpenAI's APIs.

    `base`: the path before `/chat/completions`; `headers`: those to send, the key's included; `key` is never shown.
    """

    scheme: str
    host: str
    port: int
    base: str
    model: str
    api: ApiName = "chat"
    headers: tuple[tuple[str, str], ...] = ()
    key: str | None = field(default=None, repr=False)

    @classmethod
    def read(
        cls,
        url: str,
        *,
        model: str,
        api: ApiName = "chat",
        headers: Sequence[tuple[str, str]] = (),
        key: str | None = None,
    ) -> Target:
        """Return the target of a URL; without a path its API is under `/v1`, as vLLM has it.

        Raises:
            TargetError: it is no URL of HTTP, or the model's name or a header cannot be sent.
        """
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").encode("idna").decode(), parts.port
        except ValueError:  # brackets, a port, a name that no resolver takes
            raise TargetError(f"{without_credentials(url)!r} is no URL of an API: {_URL_ADVICE}") from None
        if parts.scheme not in _PORTS or not host or port == 0:
            raise TargetError(f"{without_credentials(url)!r} is no URL of an API: {_URL_ADVICE}")
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise TargetError(f"{without_credentials(url)!r}: leave out user, query and fragment: {_URL_ADVICE}")
        if not _PATH.fullmatch(parts.path):
            raise TargetError(f"{without_credentials(url)!r}: write a path in ASCII without spaces (%20 for one)")
        if not model or not model.isprintable():
            raise TargetError(f"--model {model!r}: name the model, as the server calls it")
        base = parts.path.rstrip("/")
        for path in PATHS.values():
            base = base.removesuffix(path)
        for name, value in headers:
            if not _HEADER_NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
                raise TargetError(f"header {name!r}: printable ASCII, as --header x-team=chat")
        port = _PORTS[parts.scheme] if port is None else port
        return cls(
            parts.scheme,
            host,
            port,
            base if parts.path.strip("/") else "/v1",
            model,
            api,
            tuple(headers),
            key,
        )

    @property
    def address(self) -> str:
        """Return host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"{self.scheme}://{self.address}{self.base}"

    @property
    def path(self) -> str:
        """Return the path of the API's requests."""
        return self.base + PATHS[self.api]

    def tls(self) -> ssl.SSLContext | None:
        """Return the context of a connection; None for plain HTTP."""
        return ssl.create_default_context() if self.scheme == "https" else None

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the bytes of a request."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.address}", f"User-Agent: otel-llm-bench/{version()}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.key is not None:
            lines.append(f"Authorization: Bearer {self.key}")
        if method == "POST":
            lines += ["Accept: text/event-stream", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options that requests carry beyond OpenAI's first: those that the server does not refuse.

    `length`: the name of the reply's length, `max_tokens` or `max_completion_tokens`.
    """

    ignore_eos: bool = True
    include_usage: bool = True
    continuous_usage: bool = True
    token_ids: bool = False
    length: str = "max_tokens"

    def body(self, target: Target, prompt: str, output_tokens: int) -> bytes:
        """Return the JSON of a streamed request."""
        body: dict[str, Any] = {"model": target.model, "stream": True, self.length: output_tokens}
        if target.api == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.include_usage:
            body["stream_options"] = {"include_usage": True}
            if self.continuous_usage:
                body["stream_options"]["continuous_usage_stats"] = True
        if self.token_ids:
            body["return_token_ids"] = True
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
