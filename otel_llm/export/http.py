"""OTLP over HTTP: one POST of protobuf bytes over a kept connection."""

from __future__ import annotations

import base64
import gzip
import http.client
import zlib
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from otel_llm.export.attempt import Attempt, rejected_spans, retry_after_s
from otel_llm.export.records import version

if TYPE_CHECKING:
    import ssl

    from otel_llm.export.settings import OtlpSettings

RETRYABLE_STATUS: Final = frozenset({429, 502, 503, 504})
"""Source: OTLP specification, "Retryable response codes"."""


class HttpSender:
    """Sends payloads to one URL; nothing is opened before the first.

    On the standard library's client: `requests`, which the standard exporter uses, takes 1.2 ms of CPU for a request
    from a background thread of a busy process here, this 0.5 ms. Proxies are those of the environment, and certificates
    are checked against the setting's file, else certifi's where it is installed, as `requests` does.
    """

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._connection: http.client.HTTPConnection | None = None
        self._target = ""
        self._headers: dict[str, str] = {}

    def send(self, payload: bytes) -> Attempt:
        """Make one attempt; return what became of it, and raise nothing for what the network or the server does."""
        body = _compress(payload, self._settings.compression)
        kept = self._connection is not None
        try:
            if self._connection is None:
                self._connection = self._open()
        except (OSError, ValueError) as error:  # a URL that is none, a certificate file that is not there
            return Attempt("refused", _line(error))
        try:
            return self._post(self._connection, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            # A server may close a connection that it kept for long enough; that says nothing about the next one.
            return self.send(payload) if kept else Attempt("retry", _line(error))

    def close(self) -> None:
        """Close the kept connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def forget(self) -> None:
        """Let go of a connection that belongs to the process this one was forked from."""
        self._connection = None

    def _post(self, connection: http.client.HTTPConnection, body: bytes) -> Attempt:
        connection.request("POST", self._target, body, self._headers)
        response = connection.getresponse()
        content = response.read()
        if 200 <= response.status < 300:
            rejected, reason = rejected_spans(content)
            return Attempt("accepted", reason, rejected=rejected)
        if response.status in RETRYABLE_STATUS:
            return Attempt("retry", f"HTTP {response.status}", after_s=retry_after_s(response.getheader("Retry-After")))
        return Attempt("refused", f"HTTP {response.status} {response.reason}".strip())

    def _open(self) -> http.client.HTTPConnection:
        settings = self._settings
        url = urlsplit(settings.endpoint)
        if url.scheme not in {"http", "https"} or url.hostname is None:
            raise ValueError(f"the OTLP endpoint {settings.endpoint!r} is no http or https URL")
        self._target = f"{url.path or '/'}{'?' + url.query if url.query else ''}"
        self._headers = {"Content-Type": "application/x-protobuf", "User-Agent": f"otel-llm/{version()}"}
        if settings.compression != "none":
            self._headers["Content-Encoding"] = settings.compression
        self._headers.update(settings.headers)
        proxy = _proxy(url)
        place = url if proxy is None else proxy
        port = place.port or (443 if place.scheme == "https" else 80)
        host = place.hostname or ""
        if url.scheme == "http":
            if proxy is not None:
                self._target = settings.endpoint
                self._headers.update(_authorization(proxy))
            return http.client.HTTPConnection(host, port, timeout=settings.timeout_s)
        secure = http.client.HTTPSConnection(host, port, timeout=settings.timeout_s, context=_tls(settings))
        if proxy is not None:
            secure.set_tunnel(url.hostname, url.port or 443, _authorization(proxy))
        return secure


def _proxy(url: SplitResult) -> SplitResult | None:
    from urllib.request import getproxies, proxy_bypass

    proxy = getproxies().get(url.scheme)
    if not proxy or proxy_bypass(url.netloc.rpartition("@")[2]):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _tls(settings: OtlpSettings) -> ssl.SSLContext:
    import ssl

    trusted = settings.certificate
    if trusted is None:
        try:
            import certifi
        except ImportError:
            pass
        else:
            trusted = certifi.where()
    context = ssl.create_default_context(cafile=trusted)
    if settings.client_certificate is not None:
        context.load_cert_chain(settings.client_certificate, settings.client_key)
    return context


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _compress(payload: bytes, compression: str) -> bytes:
    if compression == "gzip":
        return gzip.compress(payload, 6)
    return zlib.compress(payload) if compression == "deflate" else payload
