"""Arrays with the time of each token: what is read, what is refused, and that it is judged like any stream."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.formats.foreign_rows import S, doubles, judged, known, rows, with_array
from support.otlp import T0_NS, Value, export, request_span

from otel_llm import semconv
from otel_llm.formats.foreign.packed_arrays import PACKED, read_packed
from otel_llm.formats.otlp.export_request import decode
from otel_llm.formats.spans.token_events import TokenEventError
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.request import judge

OFFSETS = [0.2, 0.21, 0.21, 0.4, 1.5]
TIMES = [T0_NS + round(offset * S) for offset in OFFSETS]
JSON = json.dumps(OFFSETS)
ENGINE: dict[str, Value] = {semconv.GEN_AI_USAGE_COMPLETION_TOKENS: 5, semconv.GEN_AI_USAGE_PROMPT_TOKENS: 11}


def llm_request(
    value: AnyValue, key: str = semconv.PER_TOKEN_GENERATION_TIME, reported: Mapping[str, Value] = MappingProxyType({})
) -> Span:
    """Return an engine's span of two seconds with an array of token times."""
    span = request_span(
        name="llm_request", kind=Span.SPAN_KIND_SERVER, end_ns=T0_NS + 2 * S, attributes={**ENGINE, **reported}
    )
    return with_array(span, key, value)


def read(value: AnyValue, key: str = semconv.PER_TOKEN_GENERATION_TIME) -> list[int] | None:
    return read_packed([KeyValue(key=key, value=value)], T0_NS, T0_NS + 2 * S)


FORMS = [doubles(OFFSETS), AnyValue(string_value=JSON), AnyValue(bytes_value=JSON.encode())]


@pytest.mark.parametrize("key", PACKED)
@pytest.mark.parametrize("value", FORMS, ids=["doubles", "string", "bytes"])
def test_the_forms_that_arrays_travel_in(key: str, value: AnyValue) -> None:
    assert read(value, key) == TIMES
    (row,) = rows(export(llm_request(value, key)))
    assert (row["tokens"], row["token_basis"], row["coverage"]) == (5, "exact", 1.0)
    assert (row["outcome"], row["measured_at"], row["choice"]) == ("completed", "server", None)
    assert (row["ttft_s"], row["tbt_max_s"], row["e2e_s"]) == (0.2, 1.1, 2.0)


def test_whole_seconds_are_numbers_too() -> None:
    ints = AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=1), AnyValue(double_value=1.5)]))
    assert read(ints) == read(AnyValue(string_value="[1, 1.5]")) == [T0_NS + S, T0_NS + 1_500_000_000]


def test_offsets_are_rounded_to_the_nanosecond() -> None:
    assert read(doubles([0.1234567894, 0.1234567896])) == [T0_NS + 123456789, T0_NS + 123456790]


def test_no_array_and_an_empty_one_say_nothing() -> None:
    assert read_packed([], T0_NS, T0_NS + S) is None
    assert read(doubles([])) is None
    assert read(AnyValue(string_value="[]")) is None


nested = AnyValue(array_value=ArrayValue(values=[doubles([0.1])]))
REFUSED = [
    (AnyValue(string_value="eJyLNtIzMNAzMtAzNdAzMo4FAB8YA5o="), "bad_token_array"),  # compressed
    (AnyValue(string_value=""), "bad_token_array"),
    (AnyValue(string_value="0.1"), "bad_token_array"),
    (AnyValue(string_value='{"0": 0.1}'), "bad_token_array"),
    (AnyValue(string_value='[0.1, "0.2"]'), "bad_token_array"),
    (AnyValue(string_value="[0.1, true]"), "bad_token_array"),
    (AnyValue(string_value="[0.1, null]"), "bad_token_array"),
    (AnyValue(string_value="[0.1, [0.2]]"), "bad_token_array"),
    (AnyValue(string_value="[" * 100_000), "bad_token_array"),
    (AnyValue(string_value="[" + "1" * 10_000 + "]"), "bad_token_array"),
    (AnyValue(bytes_value=b"\xff\xfe[0.1]"), "bad_token_array"),
    (AnyValue(double_value=0.1), "bad_token_array"),
    (AnyValue(kvlist_value=KeyValueList()), "bad_token_array"),
    (AnyValue(), "bad_token_array"),
    (nested, "bad_token_array"),
    (AnyValue(array_value=ArrayValue(values=[AnyValue(string_value="0.1")])), "bad_token_array"),
    (AnyValue(array_value=ArrayValue(values=[AnyValue(bool_value=True)])), "bad_token_array"),
    (AnyValue(array_value=ArrayValue(values=[AnyValue()])), "bad_token_array"),
    (doubles([0.1, float("nan")]), "token_array_not_finite"),
    (doubles([float("inf")]), "token_array_not_finite"),
    (doubles([-float("inf")]), "token_array_not_finite"),
    (AnyValue(string_value="[NaN]"), "token_array_not_finite"),
    (AnyValue(string_value="[1e999]"), "token_array_not_finite"),
    (doubles([-0.001, 0.2]), "token_array_negative"),
    (doubles([0.5, 0.02, 0.021]), "token_array_falling"),  # how long each took, not when it came
    (doubles([0.1, 3.1]), "token_array_beyond_end"),  # the span lasts two seconds
    (doubles([100.0, 200.0]), "token_array_beyond_end"),  # milliseconds
    (doubles([1.79e9, 1.79e9]), "token_array_beyond_end"),  # points in time
    (doubles([1e300]), "token_array_beyond_end"),
    (AnyValue(string_value="[" + "1" * 400 + "]"), "token_array_beyond_end"),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED)
def test_what_cannot_be_offsets_is_refused_with_a_reason(value: AnyValue, reason: str) -> None:
    with pytest.raises(TokenEventError, match=f"^{reason}$"):
        read(value)


@pytest.mark.parametrize(("value", "reason"), REFUSED[::5])
def test_a_bad_array_costs_itself_where_other_times_are_stated(value: AnyValue, reason: str) -> None:
    span = llm_request(value, reported={semconv.GEN_AI_LATENCY_TTFT: 0.2, semconv.GEN_AI_LATENCY_E2E: 1.9})
    (one,), counts = judged(export(span))
    assert (one.row["ttft_s"], one.row["e2e_s"], one.row["tokens"], one.row["met"]) == (0.2, 1.9, None, None)
    assert counts == Counter({f"anomaly.{reason}": 1})


@pytest.mark.parametrize(("value", "reason"), REFUSED[::5])
def test_a_span_that_says_nothing_else_is_refused_and_the_rest_kept(value: AnyValue, reason: str) -> None:
    batch = decode(export(request_span(request=8), llm_request(value), request_span(request=9)))
    assert batch.refused == Counter({reason: 1})
    assert len(batch.requests) == 2
    assert not batch.anomalies


def test_events_speak_where_the_array_is_bad() -> None:
    span = llm_request(doubles([-1.0]))
    span.events.extend(Span.Event(name=semconv.TOKEN_GENERATED_EVENT, time_unix_nano=at) for at in TIMES)
    (one,), counts = judged(export(span))
    assert (one.row["tokens"], one.row["ttft_s"]) == (5, 0.2)
    assert counts == Counter({"anomaly.token_array_negative": 1})


def test_the_array_speaks_before_events() -> None:
    span = llm_request(doubles(OFFSETS))
    span.events.add(name=semconv.TOKEN_GENERATED_EVENT, time_unix_nano=T0_NS + S)
    span.dropped_events_count = 7
    (row,) = rows(export(span))
    assert (row["tokens"], row["coverage"]) == (5, 1.0)


@pytest.mark.parametrize(("reported", "coverage"), [(4, 1.0), (5, 1.0), (10, 0.5)])
def test_fewer_times_than_tokens_are_not_scored(reported: int, coverage: float) -> None:
    span = llm_request(doubles(OFFSETS), reported={semconv.GEN_AI_USAGE_COMPLETION_TOKENS: reported})
    (row,) = rows(export(span))
    assert (row["coverage"], row["tokens"]) == (coverage, 5)
    assert (row["met"] is None) == (row["ttft_s"] is None) == (coverage < 1)


def test_the_prompt_s_length_is_known_by_either_name() -> None:
    batch = decode(export(llm_request(doubles(OFFSETS))))
    assert batch.requests[0].attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 11


@pytest.mark.parametrize("form", [0, 1, 2])
def test_arrays_are_within_the_budget_of_their_message(form: int) -> None:
    batch = decode(export(*[llm_request(FORMS[form]) for _ in range(4)]), budget=12)
    assert len(batch.requests) == 2
    assert batch.refused == Counter(too_many_tokens=2)


def test_text_that_could_never_fit_is_not_parsed() -> None:
    with pytest.raises(TokenEventError, match="too_many_tokens"):
        read_packed([KeyValue(key=PACKED[0], value=AnyValue(string_value="x" * 1000))], T0_NS, T0_NS + S, 10)


scalar = st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1), st.floats(0, 3))
any_value = st.recursive(
    st.one_of(
        st.builds(lambda v: AnyValue(double_value=v), st.floats()),
        st.builds(lambda v: AnyValue(int_value=v), st.integers(-(2**63), 2**63 - 1)),
        st.builds(lambda v: AnyValue(string_value=v), st.text(max_size=20)),
        st.builds(lambda v: AnyValue(string_value=json.dumps(v)), st.lists(scalar, max_size=6)),
        st.builds(lambda v: AnyValue(bytes_value=v), st.binary(max_size=20)),
        st.builds(lambda v: AnyValue(bool_value=v), st.booleans()),
        st.builds(doubles, st.lists(st.floats(0, 3), max_size=6)),
        st.just(AnyValue()),
    ),
    lambda inner: st.builds(lambda v: AnyValue(array_value=ArrayValue(values=v)), st.lists(inner, max_size=4)),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.sampled_from(PACKED), any_value), max_size=3), st.booleans())
def test_any_value_gives_times_in_order_or_a_counted_refusal(arrays: list[tuple[str, AnyValue]], stated: bool) -> None:
    span = request_span(
        attributes={semconv.GEN_AI_LATENCY_TTFT: 0.5} if stated else {semconv.GEN_AI_OPERATION_NAME: "chat"}
    )
    for key, value in arrays:
        with_array(span, key, value)
    batch = decode(export(span))
    assert len(batch.requests) + sum(batch.refused.values()) == 1
    assert not (stated and batch.refused)
    for request in batch.requests:
        assert request.events_ns == sorted(request.events_ns)
        assert all(T0_NS <= at <= request.end_ns + S for at in request.events_ns)


@given(
    st.lists(st.integers(0, 20 * S), min_size=1, max_size=60).map(sorted),
    st.integers(0, 2 * S),
    st.booleans(),
    st.sampled_from(["chat", "code", "agent", "voice", "batch"]),
    st.sampled_from(range(3)),
)
def test_an_array_is_judged_like_the_stream_it_stands_for(
    offsets_ns: list[int], after_ns: int, error: bool, name: str, form: int
) -> None:
    offsets = [offset / S for offset in offsets_ns]
    text = json.dumps(offsets)
    value = (doubles(offsets), AnyValue(string_value=text), AnyValue(bytes_value=text.encode()))[form]
    end_ns = T0_NS + offsets_ns[-1] + after_ns
    span = request_span(
        attributes={semconv.GEN_AI_OPERATION_NAME: "chat", semconv.SLO_CLASS: name}, end_ns=end_ns, error=error
    )
    (row,) = rows(export(with_array(span, semconv.PER_TOKEN_GENERATION_TIME, value)))
    outcome = "error" if error else "completed"
    times = [T0_NS + offset for offset in offsets_ns]
    expected = judge(times, T0_NS, end_ns, outcome, load_slo().get(name)).columns()
    assert {column: row[column] for column in expected} == expected
    assert row["outcome"] == outcome


def test_the_columns_of_an_array_are_those_of_a_stream() -> None:
    (row,) = rows(export(llm_request(doubles(OFFSETS))))
    assert {name for name in row if name not in known(row)} == {
        "choice",
        "model",
        "instance",
        "finish_reason",
        "queue_s",
        "relay_lag_s",
        "prefill_s",
    }
