"""Check the reports of a program's processes: streams recorded, passed, lost, and the reasons."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from otel_llm.instrumentation.doctor.environment_checks import LEAST_ATTRIBUTES
from otel_llm.instrumentation.doctor.finding import Finding
from otel_llm.instrumentation.process.unrecorded import WARNING_BEGINS
from otel_llm.instrumentation.segments.count_check import REMEDY, difference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from otel_llm.instrumentation.doctor.finding import Situation

    Report = dict[str, Any]

NOT_RECORDED: Final = "docs/stacks/not-recorded.md"


def examine_program(situation: Situation, reports: Sequence[Report]) -> list[Finding]:
    """Return the findings from the reports of a program's processes."""
    if not reports:
        text = "the program started no recorder"
        remedy = "is otel-llm installed for its Python, and is it not run with -I, -E or -S?"
        return [Finding("program", "problem", text, remedy)]
    return [finding for check in _CHECKS for finding in check(situation, reports)]


def _recorded(situation: Situation, reports: Sequence[Report]) -> Iterator[Finding]:  # noqa: ARG001
    begun, tokens, outcomes = _sum(reports, "begun"), _sum(reports, "tokens"), _sum(reports, "outcomes")
    segments, dropped = _sum(reports, "segments"), sum(report["dropped"] for report in reports)
    processes = len({report["pid"] for report in reports})
    facts = {"streams": dict(begun), "tokens": dict(tokens), "outcomes": dict(outcomes), "processes": processes}
    if begun:
        each = ", ".join(f"{stack} {count} ({tokens[stack]} tokens)" for stack, count in sorted(begun.items()))
        ended = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        text = f"streams recorded in {processes} process(es): {each}; ended: {ended or 'none'}"
        yield Finding("streams", "ok", text, facts=facts)
    else:
        text = "no streamed reply was recorded"
        yield Finding(
            "streams", "warning", text, f"did the program ask for one (stream=True)? See {NOT_RECORDED}", facts
        )
    sent: dict[str, object] = {"made": sum(segments.values()), "dropped": dropped}
    if dropped:
        text = f"{dropped} segments were dropped on the way to the endpoint"
        yield Finding(
            "segments", "problem", text, "look at the endpoint, or raise instrument(queue_segments=...)", sent
        )
    elif begun:
        yield Finding("segments", "ok", f"{sent['made']} segments of ended streams, none dropped", facts=sent)


def _unrecorded(situation: Situation, reports: Sequence[Report]) -> Iterator[Finding]:  # noqa: ARG001
    for what, count in sorted(_sum(reports, "unrecorded").items()):
        remedy = f"wrap what reads it in otel_llm.track(...); see {NOT_RECORDED}"
        yield Finding(
            "unrecorded", "problem", f"not recorded: {count} x {what}", remedy, {"what": what, "count": count}
        )


def _open(situation: Situation, reports: Sequence[Report]) -> Iterator[Finding]:  # noqa: ARG001
    left = sum((_sum(reports, "begun") - _sum(reports, "ended")).values())
    if left:
        text = f"{left} stream(s) had no end when their process was gone: they will be `lost`"
        remedy = "let the process end by itself or by SIGTERM; os._exit and SIGKILL leave no time to send"
        yield Finding("open_streams", "problem", text, remedy, {"streams": left})


def _classes(situation: Situation, reports: Sequence[Report]) -> Iterator[Finding]:
    seen = {name for report in reports for name in report["classes"]}
    refused = sum(report["refused_classes"] for report in reports)
    if refused:
        text = f"{refused} request(s) named an SLO class that is not among slo_classes"
        yield Finding(
            "classes.refused", "warning", text, "add it to instrument(slo_classes=...)", {"requests": refused}
        )
    if situation.classes is not None and (unknown := sorted(seen - situation.classes)):
        text = f"the collector does not know the SLO class(es) {', '.join(unknown)}: judged by the default"
        yield Finding("classes.unknown", "problem", text, "add them to slo.yaml, or name others", {"names": unknown})


def _counts(situation: Situation, reports: Sequence[Report]) -> Iterator[Finding]:  # noqa: ARG001
    for server, model, times in sorted({tuple(one) for report in reports for one in report["miscounted"]}):
        facts = {"server": server, "model": model, "times": times}
        yield Finding("tokens", "warning", difference(model, server, times), REMEDY, facts)


def _provider(situation: Situation, reports: Sequence[Report]) -> Iterator[Finding]:  # noqa: ARG001
    providers = {str(report["provider"]): report["provider"] for report in reports if report["begun"]}
    for provider in providers.values():
        processors, limit = provider["processors"], provider["max_span_attributes"]
        if processors == []:
            text = f"the application's {provider['type']} has no span processor: request spans go nowhere"
            remedy = "OTEL_TRACES_EXPORTER=otlp under opentelemetry-instrument, else add_span_processor(...)"
            yield Finding("provider", "warning", text, remedy, provider)
        elif processors:
            text = f"request spans go through {', '.join(processors)}, sampler {provider['sampler']}"
            yield Finding("provider", "ok", text, facts=provider)
        else:
            text = "no TracerProvider: request spans are sent as segments are"
            yield Finding("provider", "ok", text, facts=provider)
        if limit is not None and limit < LEAST_ATTRIBUTES:
            text = f"the TracerProvider keeps {limit} attributes of a span"
            yield Finding("provider.limits", "warning", text, f"{LEAST_ATTRIBUTES} or more", provider)
    if any(report["sampling"] == "parent" for report in reports):
        text = "sampling='parent': segments of unsampled traces are not sent"
        yield Finding("sampling.segments", "warning", text, "sampling='always', unless it is meant so")


def _workers(situation: Situation, reports: Sequence[Report]) -> Iterator[Finding]:  # noqa: ARG001
    if any(report["workers"]["uwsgi_without_threads"] for report in reports):
        text = "uWSGI runs this program without threads: nothing is sent"
        yield Finding("program.uwsgi", "problem", text, "enable-threads = true in its configuration")


def _warnings(situation: Situation, reports: Sequence[Report]) -> Iterator[Finding]:  # noqa: ARG001
    # A stream that passed unrecorded is a finding already.
    reported = Counter(text for report in reports for text in report["warnings"] if not text.startswith(WARNING_BEGINS))
    for text, count in reported.items():
        yield Finding("warned", "warning", f"in {count} process(es): {text}", "", {"processes": count})


_CHECKS: Final[tuple[Callable[[Situation, Sequence[Report]], Iterable[Finding]], ...]] = (
    _recorded,
    _unrecorded,
    _open,
    _classes,
    _counts,
    _provider,
    _workers,
    _warnings,
)


def _sum(reports: Sequence[Report], name: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report[name])
    return total
