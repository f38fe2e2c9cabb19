"""OTLP over HTTP: one POST of protobuf bytes over a kept connection."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Final

from otel_llm.export.attempt import Attempt, rejected_spans, retry_after_s
from otel_llm.export.records import version

if TYPE_CHECKING:
    import requests

    from otel_llm.export.settings import OtlpSettings

RETRYABLE_STATUS: Final = frozenset({429, 502, 503, 504})
"""Source: OTLP specification, "Retryable response codes"."""


class HttpSender:
    """A sender to one URL with the TLS, proxy and connection handling of `requests`.

    Nothing is opened or imported before the first payload. The request is prepared once, since preparing it anew costs
    as much as sending it (270 us of 590 here).
    """

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._session: requests.Session | None = None

    def send(self, payload: bytes) -> Attempt:
        """Make one attempt; return its result, and raise nothing for failures of the network or the server."""
        import requests

        try:
            response = self.post(payload)
        except requests.exceptions.RequestException as error:
            return Attempt("retry" if _is_passing(error) else "refused", printable_reason(error))
        except (OSError, ValueError) as error:  # a missing certificate file, an invalid URL
            return Attempt("refused", printable_reason(error))
        return _judged(response)

    def post(self, payload: bytes) -> requests.Response:
        """Make one attempt; return the answer, with any status.

        Raises:
            requests.exceptions.RequestException: there was no answer.
            OSError: a certificate file is not there.
            ValueError: the endpoint is no URL.
        """
        settings = self._settings
        body = _compress(payload, settings.compression)
        session = self._session or self._open()
        request = self._prepared.copy()
        request.body = body
        request.headers["Content-Length"] = str(len(body))
        return session.get_adapter(settings.endpoint).send(
            request,
            timeout=settings.timeout_s,
            verify=self._verify,
            cert=self._cert,
            proxies=self._proxies,
        )

    def close(self) -> None:
        """Close the kept connections."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def forget(self) -> None:
        """Release connections of the parent process."""
        self._session = None

    def _open(self) -> requests.Session:
        import requests

        settings = self._settings
        session = requests.Session()
        headers = {"Content-Type": "application/x-protobuf", "User-Agent": f"otel-llm/{version()}"}
        if settings.compression != "none":
            headers["Content-Encoding"] = settings.compression
        headers.update(settings.headers)
        self._prepared = requests.Request("POST", settings.endpoint, headers=headers).prepare()
        self._cert = (
            (settings.client_certificate, settings.client_key)
            if settings.client_certificate and settings.client_key
            else settings.client_certificate
        )
        environment = session.merge_environment_settings(
            settings.endpoint,
            {},
            False,
            settings.certificate or True,
            self._cert,
        )
        self._verify = environment["verify"]
        self._proxies = environment["proxies"]
        self._session = session
        return session


def _judged(response: requests.Response) -> Attempt:
    status = response.status_code
    content = response.content
    if 200 <= status < 300:
        rejected, reason = rejected_spans(content)
        return Attempt("accepted", reason, rejected=rejected)
    if status in RETRYABLE_STATUS:
        return Attempt("retry", f"HTTP {status}", after_s=retry_after_s(response.headers.get("Retry-After")))
    return Attempt("refused", f"HTTP {status} {response.reason or ''}".strip())


def _is_passing(error: Exception) -> bool:
    import requests

    passing = (
        requests.exceptions.ConnectionError,
        requests.exceptions.Timeout,
        requests.exceptions.ChunkedEncodingError,
    )
    return isinstance(error, passing)


def printable_reason(error: Exception) -> str:
    """Return the printable part of an error: only its class where its text may hold a secret."""
    # A ValueError quotes the refused value: a header's, or a URL with its credentials.
    name = type(error).__name__
    return name if isinstance(error, ValueError) else f"{name}: {error}".splitlines()[0][:300]


def _compress(payload: bytes, compression: str) -> bytes:
    if compression == "gzip":
        return gzip.compress(payload, 6)
    return zlib.compress(payload) if compression == "deflate" else payload
