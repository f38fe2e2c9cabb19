"""Check the endpoint of the environment: its problem, and the variable to set."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from otel_llm.export.endpoints import ENDPOINTS_VARIABLE, usable_settings
from otel_llm.export.settings import from_environment
from otel_llm.instrumentation.doctor.endpoint import ask, others, variables
from otel_llm.instrumentation.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from otel_llm.export.settings import OtlpSettings
    from otel_llm.instrumentation.doctor.endpoint import Answer, Kind
    from otel_llm.instrumentation.doctor.situation import Situation

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
    answer = ask(settings)
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
        said = text.format(where=where, reason=answer.reason or "no reason", timeout=settings.timeout_s)
        yield Finding("endpoint", "problem", said, remedy, facts)
    yield _clock(settings, answer)


def _read(situation: Situation) -> Generator[Finding, None, Mapping[str, OtlpSettings]]:
    """Read the variables; each unusable one is a finding, and an exporter of the SDK that sends to one of several."""
    said: list[str] = []
    log = logging.getLogger("otel_llm")

    def hear(record: logging.LogRecord) -> bool:
        said.append(record.getMessage())
        return False

    log.addFilter(hear)
    try:
        settings = usable_settings(situation.environ)
        sdk = from_environment(situation.environ)
    finally:
        log.removeFilter(hear)
    for text in dict.fromkeys(said):
        yield Finding("settings", "warning", text, "correct the variable, or unset it")
    if len(settings) > 1 and sdk.endpoint in {one.endpoint for one in settings.values()}:
        text = f"spans of the application's own SDK go to {sdk.shown}, which is one of {ENDPOINTS_VARIABLE}"
        remedy = (
            "name a trace backend in OTEL_EXPORTER_OTLP_ENDPOINT: there, request spans would be without their segments"
        )
        yield Finding("routing", "warning", text, remedy)
    return settings


def _speaks(settings: OtlpSettings) -> OtlpSettings | None:
    """Return the settings with which the same address takes OTLP, None where it does not."""
    for other in others(replace(settings, timeout_s=min(settings.timeout_s, PROBE_S))):
        if ask(other).kind in {"accepted", "denied"}:
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
