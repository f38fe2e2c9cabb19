"""OTLP over HTTP: one POST of protobuf bytes over a kept connection."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Final

from otel_llm.export.records import version
from otel_llm.export.transport.attempt import Attempt, rejected_spans, retry_after_s

if TYPE_CHECKING:
    import requests

    from otel_llm.export.settings import OtlpSettings

RETRYABLE_STATUS: Final = frozenset({429, 502, 503, 504})
"""Source: OTLP specification, "Retryable response codes"."""
_GZIP_LEVEL: Final = 1
"""Token events shrink to 29 %, while level 6 takes more than twice the time for 28 %."""
_ABOUT_CONTENT: Final = frozenset({400, 413})


class HttpSender:
    """Sends payloads to one URL with the TLS, proxy and connection handling of `requests`; follows no redirect.

    Nothing is opened or imported before the first payload. The request is prepared once, since preparing it anew costs
    as much as sending it (270 us of 590 here). `session`: what to send with, None for one by the environment.
    """

    def __init__(self, settings: OtlpSettings, session: requests.Session | None = None) -> None:
        self._settings = settings
        self._session = session
        self._opened: tuple[requests.Session, requests.PreparedRequest] | None = None

    def send(self, payload: bytes, timeout_s: float | None = None) -> Attempt:
        """Make one attempt within `timeout_s`, else the settings' time; no failure of network or server is raised.

        The time is that of the whole exchange, however the answer comes.
        """
        import requests

        try:
            response, content = self.post(payload, timeout_s)
        except requests.exceptions.RequestException as error:
            detailed = self._settings.shown == self._settings.endpoint
            return Attempt("retry" if _is_passing(error) else "refused", printable_reason(error, detailed=detailed))
        except (OSError, ValueError) as error:  # a missing certificate file, an invalid URL
            return Attempt("refused", printable_reason(error))
        if 200 <= response.status_code < 300:
            rejected, reason = rejected_spans(content)
            return Attempt("accepted", reason, rejected=rejected)
        return attempt_of_status(response.status_code, response.headers.get("Retry-After"), response.reason)

    def post(self, payload: bytes, timeout_s: float | None = None) -> tuple[requests.Response, bytes]:
        """Make one attempt; return the answer whatever it is, and the beginning of its content.

        Raises:
            requests.exceptions.RequestException: there was no answer, or it broke off.
            OSError: a certificate file is not there.
            ValueError: the endpoint is no URL.
        """
        from otel_llm.export.transport.whole_exchange import ANSWER_BYTES

        settings = self._settings
        body = _compress(payload, settings.compression)
        session, prepared = self._opened or self._open()
        request = prepared.copy()
        request.body = body
        request.headers["Content-Length"] = str(len(body))
        content = b""
        with session.get_adapter(settings.endpoint).send(
            request,
            timeout=timeout_s or settings.timeout_s,
            verify=self._verify,
            cert=self._cert,
            proxies=self._proxies,
        ) as response:
            for chunk in response.iter_content(ANSWER_BYTES):
                content += chunk
                if len(content) >= ANSWER_BYTES:
                    break
        return response, content

    def close(self) -> None:
        """Close the kept connections; an attempt in progress goes on until its timeout."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def forget(self) -> None:
        """Let go of connections that belong to the process this one was forked from."""
        self._opened = None

    def _open(self) -> tuple[requests.Session, requests.PreparedRequest]:
        import requests

        from otel_llm.export.transport.whole_exchange import bounded_session

        settings = self._settings
        session = self._session or bounded_session()
        headers = {"Content-Type": "application/x-protobuf", "User-Agent": f"{settings.agent}/{version()}"}
        if settings.compression != "none":
            headers["Content-Encoding"] = settings.compression
        headers.update(settings.headers)
        prepared = requests.Request("POST", settings.endpoint, headers=headers).prepare()
        self._cert = (
            (settings.client_certificate, settings.client_key)
            if settings.client_certificate and settings.client_key
            else settings.client_certificate
        )
        environment = session.merge_environment_settings(settings.endpoint, {}, False, settings.certificate, self._cert)
        self._verify = environment["verify"]
        self._proxies = environment["proxies"]
        self._opened = session, prepared
        return self._opened


def attempt_of_status(status: int, retry_after: str | None, phrase: str | None = None) -> Attempt:
    """Return the outcome that an HTTP status other than success stands for; `retry_after`: that header."""
    if status in RETRYABLE_STATUS:
        return Attempt("retry", f"HTTP {status}", after_s=retry_after_s(retry_after))
    return Attempt("refused", f"HTTP {status} {phrase or ''}".strip(), divisible=status in _ABOUT_CONTENT)


def _is_passing(error: Exception) -> bool:
    import requests

    passing = (
        requests.exceptions.ConnectionError,
        requests.exceptions.Timeout,
        requests.exceptions.ChunkedEncodingError,
    )
    return isinstance(error, passing)


def printable_reason(error: Exception, *, detailed: bool = True) -> str:
    """Return the printable part of an error: only its class if its text may hold a secret.

    A ValueError quotes the refused value: a header's, or a URL with its credentials. Others quote the URL's path and
    query: not `detailed`, if these hold some.
    """
    name = type(error).__name__
    return f"{name}: {error}".splitlines()[0][:300] if detailed and not isinstance(error, ValueError) else name


def _compress(payload: bytes, compression: str) -> bytes:
    if compression == "gzip":
        return gzip.compress(payload, _GZIP_LEVEL)
    return zlib.compress(payload) if compression == "deflate" else payload
