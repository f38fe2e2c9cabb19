"""Test whether an endpoint takes OTLP: an empty export by our own senders, and the likely other protocol if not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from otel_llm.export.clock import monotonic_s, wall_s
from otel_llm.export.settings import TRACES_PATH
from otel_llm.export.transport.grpc import GrpcSender
from otel_llm.export.transport.http import HttpSender, printable_reason

if TYPE_CHECKING:
    import requests

    from otel_llm.export.settings import OtlpSettings

EMPTY: Final = b""
"""An `ExportTraceServiceRequest` without spans."""
MAX_REASON: Final = 160

Kind = Literal[
    "accepted", "denied", "busy", "not_found", "not_otlp", "no_answer", "refused", "no_host", "untrusted", "failed"
]
"""The result of the export. `failed`: the connection was made and then broke, or TLS could not be agreed on."""

_BY_CODE: Final[dict[str, Kind]] = {
    "UNAUTHENTICATED": "denied",
    "PERMISSION_DENIED": "denied",
    "RESOURCE_EXHAUSTED": "busy",
    "DEADLINE_EXCEEDED": "no_answer",
    "UNIMPLEMENTED": "not_otlp",
}
_BY_STATUS: Final[dict[int, Kind]] = {
    401: "denied",
    403: "denied",
    404: "not_found",
    405: "not_found",
    429: "busy",
    502: "busy",
    503: "busy",
    504: "busy",
}
_BY_WORDS: Final[tuple[tuple[str, Kind], ...]] = (
    ("CERTIFICATE_VERIFY_FAILED", "untrusted"),
    ("certificate verify failed", "untrusted"),
    ("Connection refused", "refused"),
    ("NameResolutionError", "no_host"),
    ("Name or service not known", "no_host"),
    ("DNS resolution failed", "no_host"),
    ("Domain name not found", "no_host"),
)
"""Parts of the error text of a failed connection; urllib3, OpenSSL and gRPC have no codes for it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one empty export; `ahead_s`: how far this clock is ahead of the server's `Date`, to a second."""

    kind: Kind
    reason: str = ""
    took_s: float = 0.0
    ahead_s: float | None = None


def ask(settings: OtlpSettings) -> Answer:
    """Send one empty export."""
    began_s = monotonic_s()
    answer = _ask_grpc(settings) if settings.protocol == "grpc" else _ask_http(settings)
    # The text of the answer, without control characters for a terminal.
    reason = "".join(letter for letter in answer.reason if letter.isprintable())[:MAX_REASON]
    return replace(answer, reason=reason, took_s=monotonic_s() - began_s)


def _ask_grpc(settings: OtlpSettings) -> Answer:
    sender = GrpcSender(settings)
    try:
        attempt = sender.send(EMPTY)
    finally:
        sender.close()
    if attempt.verdict == "accepted":
        return Answer("accepted")
    code = attempt.reason.partition(":")[0]
    return Answer(_BY_CODE.get(code) or _by_words(attempt.reason), attempt.reason)


def _ask_http(settings: OtlpSettings) -> Answer:
    import requests

    sender = HttpSender(settings)
    try:
        response, content = sender.post(EMPTY)
    except requests.exceptions.SSLError as error:
        return Answer(_by_words(str(error)), str(error))
    except requests.exceptions.Timeout as error:
        return Answer("no_answer", str(error))
    except (requests.exceptions.RequestException, OSError, ValueError) as error:
        return Answer(_by_words(str(error)), printable_reason(error))
    finally:
        sender.close()
    return _judged(response, content)


def _judged(response: requests.Response, content: bytes) -> Answer:
    status = response.status_code
    reason = f"HTTP {status} {response.reason or ''}".strip()
    kind = _BY_STATUS.get(status, "not_otlp")
    if 200 <= status < 300:
        media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        kind = "accepted" if "protobuf" in media_type or not content else "not_otlp"
        reason = "" if kind == "accepted" else f"{reason}, {media_type or 'no content type'}"
    return Answer(kind, reason, ahead_s=_ahead_s(response.headers.get("Date")))


def _ahead_s(date: str | None) -> float | None:
    try:
        return None if date is None else wall_s() - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _by_words(reason: str) -> Kind:
    return next((kind for part, kind in _BY_WORDS if part in reason), "failed")


def others(settings: OtlpSettings) -> list[OtlpSettings]:
    """Return the same address in the other protocol, and both with TLS where it was without or without where with."""
    if settings.protocol == "grpc":
        authority, tls = settings.endpoint, not settings.insecure
    else:
        parsed = urlsplit(settings.endpoint)
        authority, tls = parsed.netloc, parsed.scheme == "https"
    found = []
    for with_tls in (tls, not tls):
        url = f"{'https' if with_tls else 'http'}://{authority}/{TRACES_PATH}"
        plain = replace(settings, compression="none")
        found.append(replace(plain, protocol="grpc", endpoint=authority, insecure=not with_tls))
        found.append(replace(plain, protocol="http/protobuf", endpoint=url, insecure=False))
    return [other for other in found if (other.protocol, other.endpoint) != (settings.protocol, settings.endpoint)
            or other.insecure != settings.insecure]  # fmt: skip


def variables(settings: OtlpSettings) -> str:
    """Return the variables that choose these settings, as a shell takes them, without credentials."""
    url = settings.shown
    if settings.protocol == "grpc":
        url = f"{'http' if settings.insecure else 'https'}://{settings.shown}"
    base = url.removesuffix(f"/{TRACES_PATH}")
    return f"OTEL_EXPORTER_OTLP_PROTOCOL={settings.protocol} OTEL_EXPORTER_OTLP_ENDPOINT={base}"
