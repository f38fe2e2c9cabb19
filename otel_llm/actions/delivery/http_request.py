"""One HTTP request to a target that the configuration names: no redirect is followed, no answer is read to its end.

Every outbound request of actions, alerts and dead letters is made here, and has one deadline for the whole exchange.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from otel_llm.config.otlp_target import http_session
from otel_llm.shared.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class NoAnswerError(Exception):
    """No answer was received.

    `maybe_sent`: whether the request may have arrived all the same; `late`: whether the time for it was used up.
    """

    def __init__(self, reason: str, *, maybe_sent: bool, late: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.maybe_sent = maybe_sent
        self.late = late


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and the beginning of a body; names of headers in lower case."""

    status: int
    body: bytes | None = b""
    """None: it was not received in time."""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return whether the status is a success; a redirect is none."""
        return 200 <= self.status < 300


def prepare() -> None:
    """Import what a request needs: the first one would be 0.1 s later."""
    import requests  # noqa: F401


def send_request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    timeout_s: float,
    ca_file: Path | None = None,
) -> Answer:
    """Send one request on a connection of its own and return the answer, whatever its status.

    `timeout_s` bounds the whole exchange: connection, request and answer. A status whose body does not follow in time
    is an answer without a body. A redirect is an answer like another: what we send goes where the configuration says
    only.

    Raises:
        NoAnswerError: no readable answer was received.
    """
    import requests
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    from otel_llm.export.transport.whole_exchange import ANSWER_BYTES

    timeout_s = max(timeout_s, 0.001)
    until_s = monotonic_s() + timeout_s
    answer: Answer | None = None
    with suppress_instrumentation(), http_session(url, ca_file) as session:
        try:
            with session.request(
                method,
                url,
                data=body,
                headers=dict(headers),
                timeout=timeout_s,
                allow_redirects=False,
                stream=True,
            ) as response:
                names = {name.lower(): value for name, value in response.headers.items()}
                answer = Answer(response.status_code, None, names)
                return replace(answer, body=response.raw.read(ANSWER_BYTES, decode_content=False))
        except requests.exceptions.ConnectTimeout:
            raise NoAnswerError("no connection in time", maybe_sent=False, late=True) from None
        except requests.exceptions.SSLError:
            raise NoAnswerError(
                "no TLS connection: its certificate is not trusted, or it speaks none", maybe_sent=False
            ) from None
        except requests.exceptions.ConnectionError as error:
            if monotonic_s() >= until_s:
                raise NoAnswerError("no answer in time", maybe_sent=True, late=True) from None
            refused = "NewConnectionError" in repr(error) or "NameResolutionError" in repr(error)
            reason = "no connection" if refused else "the connection broke"
            raise NoAnswerError(reason, maybe_sent=not refused) from None
        except requests.exceptions.Timeout:
            raise NoAnswerError("no answer in time", maybe_sent=True, late=True) from None
        except Exception as error:  # noqa: BLE001  urllib3's own errors, and any other that a target can provoke
            if answer is not None and monotonic_s() >= until_s:
                return answer
            raise NoAnswerError(f"no answer that can be read ({type(error).__name__})", maybe_sent=True) from None
