"""Check the endpoint of the environment: its problem, and the variable to set."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from otel_llm.export.clock import monotonic_s, wall_s
from otel_llm.export.endpoints import ENDPOINTS_VARIABLE, usable_settings
from otel_llm.export.settings import TRACES_PATH, from_environment
from otel_llm.export.transport.grpc import GrpcSender
from otel_llm.export.transport.http import HttpSender, printable_reason
from otel_llm.instrumentation.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    import requests

    from otel_llm.export.settings import OtlpSettings
    from otel_llm.instrumentation.doctor.finding import Situation

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


def probe(settings: OtlpSettings) -> Answer:
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
    """Return the same address in the other protocol, and both with TLS if it was without or without if with."""
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


OFF_BY_S: Final = 2.0
"""Beyond this the clocks differ: a `Date` is exact to a second, and has travelled."""
PROBE_S: Final = 3.0

_SAID: Final[dict[Kind, tuple[str, str]]] = {
    "denied": ("{where} refuses our credentials ({reason})", "set OTEL_EXPORTER_OTLP_HEADERS=authorization=..."),
    "busy": ("{where} takes nothing now ({reason})", "segments wait two minutes at most; look at the collector"),
    "not_found": (
        "{where} has no such path ({reason})",
        "end OTEL_EXPORTER_OTLP_TRACES_ENDPOINT in /v1/traces; it is used as it stands",
    ),
    "not_otlp": ("{where} answers, but not in OTLP ({reason})", "name a collector's OTLP port"),
    "no_answer": ("{where} does not answer within {timeout:g} s", "is it a collector's OTLP port, and not overloaded?"),
    "refused": ("nothing listens at {where}", "start it (`otel-llm collect`), or set OTEL_EXPORTER_OTLP_ENDPOINT"),
    "no_host": ("the host of {where} is not known", "set OTEL_EXPORTER_OTLP_ENDPOINT"),
    "untrusted": (
        "the certificate of {where} is not trusted ({reason})",
        "name its authority in OTEL_EXPORTER_OTLP_CERTIFICATE",
    ),
    "failed": ("{where} does not take the export ({reason})", "is this a collector's OTLP port?"),
}
_ELSEWISE: Final[frozenset[Kind]] = frozenset({"not_found", "not_otlp", "no_answer", "failed", "untrusted"})
"""Results with which something listens: perhaps it speaks the other protocol, or with TLS."""


def check_endpoint(situation: Situation) -> Iterator[Finding]:
    """Send an empty export to each endpoint of the segments."""
    settings = yield from _read(situation)
    for one in settings.values():
        yield from _check(replace(one, timeout_s=min(one.timeout_s, situation.timeout_s)))


def _check(settings: OtlpSettings) -> Iterator[Finding]:
    where = f"{settings.shown} over {settings.protocol}"
    answer = probe(settings)
    facts: dict[str, object] = {
        "endpoint": settings.shown,
        "protocol": settings.protocol,
        "answer": answer.kind,
        "reason": answer.reason,
    }
    if answer.kind == "accepted":
        took = f"{answer.took_s * 1000:.0f} ms"
        yield Finding("endpoint", "ok", f"{where} takes OTLP ({took})", facts=facts)
    else:
        text, remedy = _SAID[answer.kind]
        other = _speaks(settings) if answer.kind in _ELSEWISE else None
        if other is not None:
            remedy = f"it takes OTLP otherwise: {variables(other)}"
            facts["instead"] = variables(other)
        reported = text.format(where=where, reason=answer.reason or "no reason", timeout=settings.timeout_s)
        yield Finding("endpoint", "problem", reported, remedy, facts)
    yield _clock(settings, answer)


def _read(situation: Situation) -> Generator[Finding, None, Mapping[str, OtlpSettings]]:
    """Read the variables; each unusable one is a finding, and an exporter of the SDK that sends to one of several."""
    reported: list[str] = []
    log = logging.getLogger("otel_llm")

    def hear(record: logging.LogRecord) -> bool:
        reported.append(record.getMessage())
        return False

    log.addFilter(hear)
    try:
        settings = usable_settings(situation.environ)
        sdk = from_environment(situation.environ)
    finally:
        log.removeFilter(hear)
    for text in dict.fromkeys(reported):
        yield Finding("settings", "warning", text, "correct the variable, or unset it")
    if len(settings) > 1 and sdk.endpoint in {one.endpoint for one in settings.values()}:
        text = f"spans of the application's own SDK go to {sdk.shown}, which is one of {ENDPOINTS_VARIABLE}"
        remedy = (
            "name a trace backend in OTEL_EXPORTER_OTLP_ENDPOINT: there, request spans would be without their segments"
        )
        yield Finding("routing", "warning", text, remedy)
    return settings


def _speaks(settings: OtlpSettings) -> OtlpSettings | None:
    """Return the settings with which the same address takes OTLP, None if it does not."""
    for other in others(replace(settings, timeout_s=min(settings.timeout_s, PROBE_S))):
        if probe(other).kind in {"accepted", "denied"}:
            return replace(other, timeout_s=settings.timeout_s)
    return None


def _clock(settings: OtlpSettings, answer: Answer) -> Finding:
    if answer.ahead_s is None:
        why = "gRPC tells no time" if settings.protocol == "grpc" else "no Date came"
        return Finding("collector_clock", "unchecked", f"the collector's clock is not known: {why}")
    facts = {"ahead_s": round(answer.ahead_s, 1)}
    if abs(answer.ahead_s) <= OFF_BY_S:
        return Finding("collector_clock", "ok", "the collector's clock agrees with this one", facts=facts)
    side = "ahead of" if answer.ahead_s > 0 else "behind"
    text = f"this clock is {abs(answer.ahead_s):.0f} s {side} the collector's"
    return Finding("collector_clock", "warning", text, "run NTP on both: windows are placed by wall clocks", facts)
