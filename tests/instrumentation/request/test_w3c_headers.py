"""A client's trace and baggage headers: what is valid is passed on, and nothing of the rest reaches the host's log."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from support.instrumentation.work import bounded_work
from support.logs import ours

from otel_llm.instrumentation.request.propagation import (
    BAGGAGE_MEMBER_CHARS,
    BAGGAGE_MEMBERS,
    TRACESTATE_MEMBERS,
    baggage_of,
    extract,
    tracestate_of,
)

PARENT = f"00-{7:032x}-{8:016x}-01"
PIECES = st.one_of(
    st.sampled_from(
        ("a=b", "k = v", "k=v;p=1", "k=v ; p", "x y z", "=", ",", ";", " ", "\t", "k", "é=1", "k=é", "\x9b", '"')
    ),
    st.sampled_from(
        ("a=" + "b" * 5000, "a" * 300 + "=1", "a@b=1", "1@a=x", "A=b", "k=v=w", "k=%20%ff", "k=\\", ",," * 50)
    ),
    st.text(max_size=5),
)
HEADERS = st.one_of(
    st.builds("".join, st.lists(PIECES, max_size=12)),
    st.builds(",".join, st.lists(PIECES, max_size=12)),
    st.builds(lambda piece, times: ",".join([piece] * times), PIECES, st.sampled_from((31, 33, 181, 3000))),
)


def read(**headers: str) -> Context:
    return extract((name.encode(), value.encode("utf-8", "surrogatepass")) for name, value in headers.items())


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return ours(caplog, logging.INFO)


class Hearing(logging.Handler):
    """A handler that keeps what is said."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__()
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.append(record.getMessage())


@given(header=HEADERS)
def test_the_propagators_of_opentelemetry_have_nothing_to_say_of_it(header: str) -> None:
    """They may say it of the whole header: what they get is what they take as it is."""
    heard: list[str] = []
    logger = logging.getLogger("opentelemetry")
    handler = Hearing(heard)
    logger.addHandler(handler)
    try:
        read(baggage=header)
        read(traceparent=PARENT, tracestate=header)
        read(traceparent=header)
        W3CBaggagePropagator().extract({"baggage": baggage_of(header)})
        TraceContextTextMapPropagator().extract({"traceparent": PARENT, "tracestate": tracestate_of(header)})
    finally:
        logger.removeHandler(handler)
    assert heard == []


KEYS = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)
VALUES = st.from_regex(r"[!-+\--:<-[\]-~]{1,9}", fullmatch=True)
MEMBERS = st.lists(st.tuples(KEYS, VALUES), max_size=8)


@given(members=MEMBERS, spaces=st.sampled_from(("", " ", "\t ")))
def test_what_is_valid_is_what_opentelemetry_reads(members: list[tuple[str, str]], spaces: str) -> None:
    pairs = [(key, value.replace('"', "").replace("=", "") or "x") for key, value in members]
    header = f"{spaces},{spaces}".join(f"{key}{spaces}={spaces}{value};p" for key, value in pairs)
    assert baggage.get_all(read(baggage=header)) == baggage.get_all(W3CBaggagePropagator().extract({"baggage": header}))
    state = f"{spaces},{spaces}".join(f"{key}={value}" for key, value in pairs)
    theirs = TraceContextTextMapPropagator().extract({"traceparent": PARENT, "tracestate": state})
    [ours, bare] = [
        trace.get_current_span(one).get_span_context() for one in (read(traceparent=PARENT, tracestate=state), theirs)
    ]
    assert (ours.trace_id, dict(ours.trace_state)) == (bare.trace_id, dict(bare.trace_state))


@pytest.mark.parametrize(
    "header",
    [
        "x y z api_key sk-live-999",
        "k\x9b2J\x9b31m=1",
        "sk-live-123 " * 5000,
        "k=" + "sk-live" * 1000,
        ",".join(["k=1"] * 9000),
    ],
    ids=["no pair", "controls", "long", "a long value", "many"],
)
@pytest.mark.parametrize("name", ["baggage", "tracestate", "traceparent"])
def test_nothing_is_logged(name: str, header: str, caplog: pytest.LogCaptureFixture) -> None:
    read(**{"traceparent": PARENT, name: header})
    assert told(caplog) == []


def test_one_bad_member_costs_no_other() -> None:
    header = f"a=1,no pair,b = 2 ; p=1,c={'x' * BAGGAGE_MEMBER_CHARS},d=4"
    assert baggage.get_all(read(baggage=header)) == {"a": "1", "b": "2;p=1", "d": "4"}


def test_there_are_as_many_members_as_opentelemetry_reads() -> None:
    assert baggage_of(",".join(f"k{number}=1" for number in range(1000))).count("=") == BAGGAGE_MEMBERS
    states = [f"k{number}=1" for number in range(TRACESTATE_MEMBERS + 1)]
    assert [tracestate_of(",".join(states[:count])).count("=") for count in (TRACESTATE_MEMBERS, len(states))] == [
        TRACESTATE_MEMBERS,
        0,
    ]


def test_spaces_within_a_pair_do_not_reach_the_splitter_of_opentelemetry() -> None:
    """Its pattern reads a run of them once for each of them."""
    with bounded_work(1000):
        assert baggage_of("k" + " " * 4000 + "=" + " " * 4000 + "v") == ""
        assert baggage_of("k" + " " * 1000 + "=" + " " * 1000 + "v") == "k=v"
