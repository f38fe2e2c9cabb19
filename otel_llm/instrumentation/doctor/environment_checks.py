"""Check the environment's effects on recording: switches, sampling, limits, worker models, clocks, class names."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from otel_llm.export.clock import monotonic_ns, wall_ns
from otel_llm.instrumentation.doctor.finding import Finding, version_of
from otel_llm.instrumentation.request.propagation import is_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.instrumentation.doctor.finding import Situation

LEAST_ATTRIBUTES: Final = 48
"""Attributes that a request span may need; under a lower limit the SDK drops the first ones."""
CLOCK_S: Final = 0.2
CLOCK_OFF_NS: Final = 5_000_000
"""The allowed difference of two clocks in `CLOCK_S`; NTP slews by at most 0.1 ms in that time."""


def check_switch(situation: Situation) -> Iterator[Finding]:
    """Check whether OpenTelemetry is switched off."""
    if situation.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        yield Finding("switch", "problem", "OTEL_SDK_DISABLED is true: nothing is recorded", "unset it")
    else:
        yield Finding("switch", "ok", "OpenTelemetry is not switched off")


def check_sampling(situation: Situation) -> Iterator[Finding]:
    """Check which request spans the sampler keeps; segments do not depend on it by default."""
    sampler = situation.environ.get("OTEL_TRACES_SAMPLER", "").strip()
    facts = {"sampler": sampler or None, "argument": situation.environ.get("OTEL_TRACES_SAMPLER_ARG")}
    if sampler in {"", "always_on", "parentbased_always_on"}:
        yield Finding("sampling", "ok", "all traces are sampled", facts=facts)
        return
    text = f"OTEL_TRACES_SAMPLER={sampler}: request spans of unsampled traces are not sent; segments are"
    remedy = "nothing, unless instrument(sampling='parent'): live rules see sampled streams only then"
    yield Finding("sampling", "warning", text, remedy, facts)


def check_limits(situation: Situation) -> Iterator[Finding]:
    """Check for span limits that cut request spans; segments are not made by the SDK and have none."""
    for name in ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"):
        stated = situation.environ.get(name, "").strip()
        if stated.isdecimal() and int(stated) < LEAST_ATTRIBUTES:
            text = f"{name}={stated} cuts attributes of request spans"
            yield Finding("limits", "warning", text, f"{LEAST_ATTRIBUTES} or more", {"variable": name})
            return
    yield Finding("limits", "ok", "span limits leave request spans whole")


def check_workers(situation: Situation) -> Iterator[Finding]:  # noqa: ARG001
    """Name worker models in which nothing would be sent."""
    if version_of("uwsgi") or version_of("pyuwsgi"):
        text = "uWSGI runs no background threads by default: nothing would be sent"
        yield Finding("workers.uwsgi", "warning", text, "enable-threads = true in its configuration")


def check_clocks(situation: Situation) -> Iterator[Finding]:  # noqa: ARG001
    """Let wall clock and monotonic clock run beside each other for a moment."""
    ahead_ns = wall_ns() - monotonic_ns()
    time.sleep(CLOCK_S)
    parted_ns = wall_ns() - monotonic_ns() - ahead_ns
    facts = {"parted_ns": parted_ns}
    if abs(parted_ns) <= CLOCK_OFF_NS:
        yield Finding("clocks", "ok", "wall clock and monotonic clock run alike", facts=facts)
        return
    text = f"the wall clock moved by {parted_ns / 1e6:.0f} ms within {CLOCK_S:g} s of the monotonic clock"
    yield Finding("clocks", "warning", text, "let NTP slew the clock instead of setting it", facts)


def check_classes(situation: Situation) -> Iterator[Finding]:
    """Check whether the names given with `--classes` can be names on the wire."""
    if situation.classes is None:
        text = "SLO class names were not checked"
        yield Finding("classes", "unchecked", text, "give the names in the collector's slo.yaml: --classes chat,code")
        return
    wrong = sorted(name for name in situation.classes if not is_class(name))
    if wrong:
        text = f"no request header can name {', '.join(map(repr, wrong))}"
        remedy = "class names are 1 to 64 of A-Z a-z 0-9 _ . -"
        yield Finding("classes", "problem", text, remedy, {"names": wrong})
    else:
        text = f"classes {', '.join(sorted(situation.classes))} can be named by requests"
        yield Finding("classes", "ok", text, facts={"names": sorted(situation.classes)})
