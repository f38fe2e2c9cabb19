"""A client of a collector's web port, with TLS and a token.

WebClientError           no snapshot; the message is for people
|- UnreachableError      no server answers
|- UntrustedError        the certificate is not trusted
|- UnauthenticatedError  the token is missing or wrong
`- UnexpectedError       the server is not a collector, or refuses the request

By `urllib`, unlike all else that is sent here: `requests` trusts its own list of authorities, not this machine's, and
hides the reason of OpenSSL, from which the advice follows.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlencode, urlsplit

from otel_llm.config.secret_files import read_bearer
from otel_llm.config.yaml_file import UnreadableConfigError
from otel_llm.export.settings import without_credentials
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message
    from pathlib import Path
    from typing import IO

TIMEOUT_S: Final = 3.0
MOST_ANSWER_BYTES: Final = 64 * 2**20
"""A snapshot holds a few hundred streams: a longer answer is not one."""
_WRONG_NAME: Final = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_WEB_ADVICE: Final = "use its --web address (port 9464 by default)"
_NEEDED: Final = ("streams", "recent", "in_flight", "starving", "judged")
"""The fields of a snapshot that every view shows."""
_MOST_CHARS: Final = 200
"""The most characters of an error answer that are repeated."""


class WebClientError(Exception):
    """There is no snapshot; the module's docstring has the tree."""


class UnreachableError(WebClientError):
    """No server answers."""


class UntrustedError(WebClientError):
    """The certificate is not trusted."""


class UnauthenticatedError(WebClientError):
    """The token is missing or wrong."""


class UnexpectedError(WebClientError):
    """The server is not a collector, or refuses the request."""


class Source:
    """A collector's web port.

    Args:
        url: its address, `http://` or `https://`.
        token_file: a tokens file; its first token is sent.
        ca: the authorities (PEM) of its certificate; None: those that this machine trusts.
        most_bytes: of an answer.

    Raises:
        ConfigError: a file cannot be used.
        ValueError: `url` is no such address, or `ca` is given for an `http://` address.
    """

    def __init__(
        self,
        url: str,
        *,
        token_file: Path | None = None,
        ca: Path | None = None,
        most_bytes: int = MOST_ANSWER_BYTES,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{without_credentials(url)!r} is no http:// or https:// address")
        if not {"@", "?", "#"}.isdisjoint(url):
            raise ValueError(f"{without_credentials(url)!r}: no credentials or query in an address: --token-file FILE")
        try:
            _ = urlsplit(url).port
        except ValueError:
            raise ValueError(f"{without_credentials(url)!r} has no port that is one") from None
        if ca is not None and not url.startswith("https://"):
            raise ValueError(f"{url} has no certificate: --ca goes with an https:// address")
        self.url = url.rstrip("/")
        self._most_bytes = most_bytes
        self._headers = {}
        if token_file is not None:
            self._headers["Authorization"] = f"Bearer {read_bearer(token_file)}"
        context = urllib.request.HTTPSHandler(context=_trusting(ca))
        self._opener = urllib.request.build_opener(_NoRedirects, context)

    def streams(self, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the snapshot of `/v1/streams`; `query`: its parameters.

        Raises:
            WebClientError: there is none.
        """
        url = f"{self.url}/v1/streams" + (f"?{urlencode(query)}" if query else "")
        request = urllib.request.Request(url, headers=self._headers)  # noqa: S310  http only
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                snapshot = _read(answer, self._most_bytes)
        except urllib.error.HTTPError as no:
            with no:
                self._refused(no)
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise UntrustedError(self._distrust(error.reason)) from None
            if getattr(error.reason, "reason", None) == "WRONG_VERSION_NUMBER":
                plain = self.url.replace("https", "http", 1)
                raise UnexpectedError(f"{self.url} has no TLS: use {plain}") from None
            raise UnreachableError(f"no collector answers at {self.url} ({error.reason})") from error
        except OSError as error:
            raise UnreachableError(f"no collector answers at {self.url} ({error})") from error
        except http.client.BadStatusLine as error:
            words = f"no HTTP/1.1, as at a gRPC port: {_WEB_ADVICE}"
            raise UnexpectedError(f"the server at {self.url} is not a collector's web port ({words})") from error
        except (ValueError, RecursionError, http.client.HTTPException) as error:
            raise UnexpectedError(
                f"the server at {self.url} is not a collector ({printable(str(error), _MOST_CHARS)})"
            ) from error
        found: dict[str, Any] = snapshot if isinstance(snapshot, dict) else {}
        for name in _NEEDED:
            if name not in found:
                raise UnexpectedError(f"the server at {self.url} is not a collector (no {name} in its answer)")
        return found

    def _refused(self, no: urllib.error.HTTPError) -> NoReturn:
        if no.code == HTTPStatus.UNAUTHORIZED:
            problem = "does not know this token" if self._headers else "asks for a token: --token-file FILE"
            raise UnauthenticatedError(f"the collector at {self.url} {problem}")
        try:
            words = no.read(_MOST_CHARS).decode("utf-8", "replace").partition("\n")[0].strip()
        except (OSError, http.client.HTTPException):
            words = ""
        words = printable(words or str(no.reason), _MOST_CHARS)
        if no.code == HTTPStatus.NOT_FOUND and "/v1/traces" in words:
            words = f"that is its OTLP port: {_WEB_ADVICE}"
        raise UnexpectedError(f"{self.url} answers {no.code}: {words}")

    def _distrust(self, error: ssl.SSLCertVerificationError) -> str:
        if error.verify_code in _WRONG_NAME:
            advice = "use a name that is in it"
        else:
            advice = "--ca FILE names the authority that signed it"
        return f"the certificate at {self.url} cannot be trusted ({error.verify_message}): {advice}"


def _read(answer: IO[bytes], most_bytes: int) -> Any:
    """Return the JSON of an answer.

    Raises:
        ValueError: it is not JSON, or longer than `most_bytes`.
    """
    text = answer.read(most_bytes + 1)
    if len(text) > most_bytes:
        raise ValueError(f"an answer of more than {most_bytes} bytes")
    return json.loads(text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: urllib would send the token to the new address."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Return None: the redirect is an error answer."""


def _trusting(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise UnreadableConfigError(str(ca), None, None, "", "no certificate in this file", "name a PEM file") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableConfigError(str(ca), None, None, "", reason, "name a PEM file that can be read") from None
