"""A relay's own recording of a request: whose trace it is in, when it is announced, and what its span says."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from support.instrumentation.fake_environment import COMMIT_NS, MS, OFFSET_NS
from support.relay.recording import Choice, Chunk, EngineRequest, Rig, attributes, stated

from otel_llm import semconv
from otel_llm.evaluate.own_streams.first_hand import FirstHand
from otel_llm.slo.classes import Deadline, SloClass, SloClasses

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = [
    (b"Traceparent", f"00-{TRACE}-{PARENT}-01".encode()),
    (b"tracestate", b"vendor=a,other=b"),
    (b"baggage", b"tenant=x%20y,otel_llm.slo.class=batch"),
    (b"authorization", b"Bearer secret"),
]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def times_ms(span: Span) -> tuple[float, float]:
    """Return when a span began and ended, in ms after the commit."""
    base_ns = OFFSET_NS + COMMIT_NS
    return (span.start_time_unix_nano - base_ns) / MS, (span.end_time_unix_nano - base_ns) / MS


# Whose trace it is in.


def test_the_request_is_a_server_span_below_the_clients(rig: Rig) -> None:
    rig.begin(CLIENT).ended("completed")
    span = rig.request()
    assert (span.kind, span.name, span.trace_id.hex(), span.parent_span_id.hex()) == (
        Span.SPAN_KIND_SERVER,
        "chat m",
        TRACE,
        PARENT,
    )
    reported = attributes(span)
    assert (reported[semconv.MEASURED_AT], reported[semconv.SLO_CLASS]) == ("relay", "batch")
    assert not any(name.startswith("otel_llm.gpu") for name in reported)


def test_the_request_span_is_the_parent_of_what_the_backend_sees(rig: Rig) -> None:
    recorded = rig.begin(CLIENT)
    assert dict(recorded.headers_for_backend()) == {
        "traceparent": f"00-{TRACE}-{recorded.key[1].hex()}-01",
        "tracestate": "vendor=a,other=b",
        "baggage": "tenant=x%20y,otel_llm.slo.class=batch",
    }
    recorded.ended("completed")
    assert (rig.request().trace_id, rig.request().span_id) == recorded.key[:2]


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_a_request_behind_a_step_of_the_wall_clock_has_the_new_time(rig: Rig, step_s: int) -> None:
    step_ns = step_s * 10**9
    before = rig.begin()
    rig.host.step_ns = step_ns
    rig.wait(300)
    for recorded in (before, rig.begin()):
        recorded.served_by("a", exact_resume=False)
        recorded.tokens(rig.host.now_ns, 0, 1, "content")
        rig.wait(10)
        recorded.ended("completed")
    began = [span.start_time_unix_nano for span in rig.spans() if span.name != semconv.SEGMENT_SPAN]
    assert sorted(began) == sorted([OFFSET_NS + COMMIT_NS, OFFSET_NS + COMMIT_NS + 300 * MS + step_ns])
    # The rules' time has not stepped.
    assert [row["e2e_s"] for row in rig.sink.rows] == pytest.approx([0.31, 0.02])


def test_baggage_in_two_headers_and_in_bytes_that_are_no_text_goes_on_as_it_came(rig: Rig) -> None:
    parts = [b"a=1", b"b=\xff\xc3\xa4"]
    found = rig.begin([(b"baggage", part) for part in parts]).headers_for_backend()
    sent = [value.encode("utf-8", "surrogateescape") for name, value in found if name == "baggage"]
    assert sent == parts


def test_a_request_without_a_trace_begins_one(rig: Rig) -> None:
    recorded = rig.begin()
    [(name, value)] = recorded.headers_for_backend()
    assert (name, value) == ("traceparent", f"00-{recorded.key[0].hex()}-{recorded.key[1].hex()}-01")
    recorded.ended("completed")
    assert rig.request().parent_span_id == b""


def test_a_request_is_found_by_its_own_span_and_by_its_clients(rig: Rig) -> None:
    above = (bytes.fromhex(TRACE), bytes.fromhex(PARENT), "default")
    find = rig.recorder.find
    assert find(above) == ()
    one, two, other = rig.begin(CLIENT), rig.begin(CLIENT), rig.begin()
    assert find(above) == (one.key, two.key)
    assert [find(each.key) for each in (one, two, other)] == [(one.key,), (two.key,), (other.key,)]
    assert find((above[0], other.key[1], "default")) == ()
    one.ended("completed")
    one.ended("completed")
    assert find(above) == (two.key,)
    assert find(one.key) == ()
    two.ended("error")
    other.ended("completed")
    assert find(above) == ()
    assert rig.recorder.children == {}


@pytest.mark.parametrize("broken", [b"", b"00-0-0-01", b"\xff\xfe", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"])
def test_a_broken_traceparent_begins_a_trace(rig: Rig, broken: bytes) -> None:
    recorded = rig.begin([(b"traceparent", broken), (b"tracestate", b"\xff=,,="), (b"baggage", b"%zz")])
    recorded.ended("completed")
    assert rig.request().parent_span_id == b""
    assert dict(recorded.headers_for_backend())["traceparent"].split("-")[1] == recorded.key[0].hex()


@pytest.mark.parametrize(
    ("headers", "declared", "judged", "refused"),
    [
        ([(b"x-slo-class", b"batch")], "batch", "batch", 0),
        ([*CLIENT, (b"X-SLO-Class", b"chat")], "chat", "chat", 0),
        ([(b"x-slo-class", b"nobody's")], None, "chat", 1),
        ([], None, "chat", 0),
    ],
)
def test_the_class_is_the_headers_before_the_baggages(
    rig: Rig, headers: list[tuple[bytes, bytes]], declared: str | None, judged: str, refused: int
) -> None:
    rig.begin(headers).ended("completed")
    assert rig.segments()[0].get(semconv.SLO_CLASS) == declared
    assert [row["slo_class"] for row in rig.sink.rows] == [judged]
    assert rig.host.refused_classes == refused


def test_bytes_without_tokens_are_stated_by_an_empty_segment(rig: Rig) -> None:
    recorded = rig.begin()
    recorded.served_by("a", exact_resume=True)
    rig.wait(100)
    recorded.tokens(rig.host.now_ns, 0, 1, "content")
    rig.cut()
    rig.wait(200)
    recorded.heard(rig.host.now_ns)
    rig.wait(60)
    rig.cut()
    [stream] = recorded.streams.values()
    assert stream.last_byte_ns == stream.stream.last_ns + 200 * 1_000_000
    assert rig.segments()[-1].get(semconv.SEGMENT_LAST_BYTE) == stream.last_byte_ns


def tokens_of(rig: Rig) -> list[tuple[str, int]]:
    """Return the kind and the number of tokens of each event."""
    found = []
    for span in rig.spans():
        for event in span.events:
            reported = attributes(event)
            found.append((reported.get(semconv.TOKEN_KIND, "content"), reported.get(semconv.TOKEN_COUNT, 1)))
    return found


def content(text: str) -> dict[str, Any]:
    return {"delta": {"content": text}}


def test_raw_thinking_is_recorded_as_a_clients_recorder_does(rig: Rig) -> None:
    recorded = rig.begin()
    texts = [("<think>", 1), ("Hm", 1), ("", 1), ("，", 1), ("a b c d e f g</think>Hi", 12), ("there", 1)]
    for text, count in texts:
        recorded.tokens(rig.host.now_ns, 0, count, "content", text, content(text))
    recorded.ended("completed")
    assert tokens_of(rig) == [("reasoning", 1)] * 4 + [("reasoning", 6), ("content", 6), ("content", 1)]


def test_more_ids_than_a_text_can_have_are_not_believed(rig: Rig) -> None:
    recorded = rig.begin()
    recorded.tokens(rig.host.now_ns, 0, 50_000, "content", "abc", content("abc"))
    recorded.tokens(rig.host.now_ns, 0, 60, "tool", "", {"delta": {"tool_calls": [{"function": {"name": "f"}}]}})
    assert recorded.output_tokens == 61
    recorded.ended("completed")
    assert rig.segments()[-1][semconv.TOKEN_BASIS] == "estimated"


DEEP: Any = []
for _ in range(600):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "delta", [{"tool_calls": {"a": 1}}, {"tool_calls": True}, {"tool_calls": [1]}, {"foo": DEEP}, {"content": DEEP}]
)
def test_no_delta_raises(delta: dict[str, Any], rig: Rig) -> None:
    recorded = rig.begin()
    recorded.text(rig.host.now_ns, 0, {"delta": delta})
    recorded.tokens(rig.host.now_ns, 0, 99, "content", "", {"delta": delta})
    recorded.ended("completed")


# When it is announced.


def test_segment_0_waits_for_the_backends_headers_and_stays_the_commits(rig: Rig) -> None:
    recorded = rig.begin()
    recorded.serving("a")
    rig.wait(249)
    rig.cut()
    assert rig.host.sent == []
    recorded.served_by("a", exact_resume=True)
    [announced] = rig.spans()
    assert times_ms(announced) == (0, 0)
    reported = attributes(announced)
    assert (reported[semconv.INSTANCE], reported[semconv.EXACT_RESUME], reported[semconv.GEN_AI_REQUEST_MODEL]) == (
        "a",
        True,
        "m",
    )

    recorded.served_by("b", exact_resume=False)
    rig.wait(500)
    assert len(rig.host.sent) == 1
    [stream] = recorded.streams.values()
    assert (stream.instance, stream.exact_resume, stream.identity.instance) == ("b", False, "a")


def test_it_waits_no_longer_than_250_ms_and_names_who_was_asked(rig: Rig) -> None:
    recorded = rig.begin()
    recorded.serving("a")
    rig.wait(250)
    [announced] = rig.spans()
    assert times_ms(announced) == (0, 0)
    assert attributes(announced)[semconv.INSTANCE] == "a"
    assert semconv.EXACT_RESUME not in attributes(announced)


def test_a_backend_that_is_asked_later_is_named_on_the_request_span(rig: Rig) -> None:
    recorded = rig.begin()
    rig.wait(300)
    assert semconv.INSTANCE not in rig.segments()[0]
    recorded.serving("a")
    recorded.serving("b")
    recorded.ended("completed")
    assert attributes(rig.request())[semconv.INSTANCE] == "a"
    assert [row["instance"] for row in rig.sink.rows] == ["a"] == [row["instance"] for row in rig.audited()]


def test_a_request_that_ends_before_it_is_announced_is_announced_then(rig: Rig) -> None:
    rig.begin().ended("cancelled")
    assert [one.get(semconv.OUTCOME) for one in rig.segments()] == [None, "cancelled"]
    assert rig.timers[0].over


# Tokens and their times.


def test_each_choice_has_its_own_tokens_with_their_kind_and_count(rig: Rig) -> None:
    recorded = rig.begin(asked=EngineRequest(choices=2))
    recorded.served_by("a", exact_resume=False)
    recorded.tokens(COMMIT_NS + 1 * MS, 0, 1, "reasoning")
    assert recorded.text(COMMIT_NS + 2 * MS, 1, stated("tool", 8)) == 1
    assert recorded.text(COMMIT_NS + 2 * MS, 1, stated("tool", 16)) == 5
    recorded.tokens(COMMIT_NS + 3 * MS, 0, 2, "content")
    rig.wait(5)
    recorded.ended("completed")
    reported = [
        (attributes(span).get(semconv.CHOICE, 0), times_ms(span)[0], event.time_unix_nano, attributes(event))
        for span in rig.spans()
        if span.name == semconv.SEGMENT_SPAN
        for event in span.events
    ]
    at_ns = OFFSET_NS + COMMIT_NS
    assert reported == [
        (0, 0, at_ns + 1 * MS, {semconv.TOKEN_KIND: "reasoning"}),
        (0, 0, at_ns + 3 * MS, {semconv.TOKEN_COUNT: 2}),
        (1, 0, at_ns + 2 * MS, {semconv.TOKEN_KIND: "tool"}),
        (1, 0, at_ns + 2 * MS, {semconv.TOKEN_COUNT: 5, semconv.TOKEN_KIND: "tool"}),
    ]
    assert [rig.segments(choice)[-1][semconv.TOKEN_BASIS] for choice in (0, 1)] == ["exact", "estimated"]
    assert [rig.segments(choice)[-1][semconv.TOKENS] for choice in (0, 1)] == [3, 6]
    assert attributes(rig.request())[semconv.GEN_AI_REQUEST_CHOICE_COUNT] == 2


def test_a_choice_that_has_no_ids_for_once_is_estimated(rig: Rig) -> None:
    recorded = rig.begin()
    recorded.tokens(COMMIT_NS, 0, 1, "content")
    recorded.text(COMMIT_NS, 0, stated("content", 4))
    recorded.ended("completed")
    assert rig.segments()[-1][semconv.TOKEN_BASIS] == "estimated"


@pytest.mark.parametrize("choice", [-1, 128, 10**9])
def test_a_choice_that_cannot_be_is_left_out(rig: Rig, choice: int) -> None:
    recorded = rig.begin()
    recorded.tokens(COMMIT_NS, choice, 1, "content")
    recorded.noted(Chunk(Choice(choice, "stop")), COMMIT_NS, continues=False)
    recorded.ended("completed")
    assert [row["tokens"] for row in rig.audited()] == [0]


def test_every_token_may_make_something_due(rig: Rig) -> None:
    recorded = rig.begin()
    recorded.served_by("a", exact_resume=True)
    before = rig.rearmed
    recorded.tokens(COMMIT_NS, 0, 1, "content")
    assert rig.rearmed == before + 1


def test_while_bytes_wait_for_the_client_or_no_backend_is_open_the_facts_say_so(rig: Rig) -> None:
    recorded = rig.begin()
    recorded.served_by("a", exact_resume=True)
    [stream] = recorded.streams.values()
    recorded.blocked(True)
    recorded.disconnected()
    assert (stream.has_gap, stream.ageless) == (True, False)
    recorded.blocked(False)
    recorded.connected()
    assert (stream.has_gap, stream.ageless) == (False, True)


# What the request span says.


def test_the_class_says_the_time_a_token_before_and_behind_segment_0() -> None:
    classes = SloClasses(
        (
            SloClass("chat", pace_ns=40_000_000),
            SloClass("batch", deadline=Deadline("e2e", 10**9)),
            SloClass(
                "texts", (("gen_ai.operation.name", "text_completion"),), deadline=Deadline("dslo", 1, 30_000_000)
            ),
        ),
        default="chat",
    )
    rig = Rig(classes)
    cases: list[tuple[list[tuple[bytes, bytes]], EngineRequest, int | None]] = [
        (CLIENT, EngineRequest(), None),
        ([], EngineRequest(), 40_000_000),
        ([], EngineRequest("text_completion"), 30_000_000),
    ]
    for headers, asked, token_time_ns in cases:
        recorded = rig.begin(headers, asked)
        assert recorded.slo.token_time_ns == token_time_ns
        recorded.served_by("a", exact_resume=True)
        assert recorded.slo.token_time_ns == token_time_ns


def test_a_stream_starves_when_its_reader_has_read_all_unless_nothing_is_known_or_it_is_paused(rig: Rig) -> None:
    """The class reads a token in 200 ms."""
    recorded = rig.begin(asked=EngineRequest(choices=2))
    recorded.served_by("a", exact_resume=True)
    rig.wait(5000)
    assert recorded.starving() == 0, "without a token no reader has begun to read"
    recorded.tokens(rig.host.now_ns, 0, 2, "content")
    rig.wait(400)
    assert recorded.starving() == 0
    rig.wait(1)
    assert recorded.starving() == 1
    stream = recorded.streams[0]
    recorded.blocked(True)
    assert recorded.starving() == 0, "the reader does not take what there is"
    recorded.blocked(False)
    now_ns = rig.host.now_ns + OFFSET_NS
    rig.first_hand.advance(now_ns + 100 * MS)
    assert recorded.starving() == 1
    rig.first_hand.pause(stream, now_ns + 100 * MS)
    assert recorded.starving() == 0
    rig.first_hand.resume(stream, now_ns + 100 * MS)
    assert recorded.starving() == 1
    recorded.tokens(rig.host.now_ns, 0, 1, "content")
    assert recorded.starving() == 0


def test_a_reply_says_its_usage_its_finish_and_who_it_is_by(rig: Rig) -> None:
    recorded = rig.begin()
    recorded.tokens(COMMIT_NS, 0, 1, "content")
    recorded.noted(Chunk(Choice(0), id="chatcmpl-1", model="m-2"), COMMIT_NS, continues=False)
    recorded.noted(Chunk(Choice(0, "length")), COMMIT_NS, continues=False)
    recorded.noted(Chunk(usage={"prompt_tokens": 12, "completion_tokens": 40}), COMMIT_NS, continues=False)
    recorded.ended("completed")
    reported = attributes(rig.request())
    assert reported[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 12
    assert reported[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == 40
    assert reported[semconv.GEN_AI_RESPONSE_FINISH_REASONS] == ("length",)
    assert (reported[semconv.GEN_AI_RESPONSE_ID], reported[semconv.GEN_AI_RESPONSE_MODEL]) == ("chatcmpl-1", "m-2")
    assert reported[semconv.TOKENS] == 1
    assert rig.segments()[-1][semconv.GEN_AI_USAGE_INPUT_TOKENS] == 12


def test_a_reply_of_chunks_is_judged_by_the_length_that_it_states_at_its_end(rig: Rig) -> None:
    recorded = rig.begin()
    for kind in ("reasoning", "content", "content"):
        rig.wait(100)
        recorded.text(rig.host.now_ns, 0, stated(kind, 3))
    recorded.noted(Chunk(Choice(0, "stop")), rig.host.now_ns, continues=False)
    assert rig.sink.rows == [], "its usage may follow"
    counts = {"completion_tokens": 90, "completion_tokens_details": {"reasoning_tokens": 30}}
    recorded.noted(Chunk(usage={"prompt_tokens": 7, **counts}), rig.host.now_ns, continues=False)
    recorded.ended("completed")
    [row] = rig.sink.rows
    assert (row["tokens"], row["tokens_recorded"], row["token_basis"]) == (90, 3, "estimated")
    assert row["tokens_read"] == 60
    assert [row] == rig.audited()


def test_the_usage_of_a_backend_that_continued_the_reply_is_not_the_replys(rig: Rig) -> None:
    recorded = rig.begin()
    recorded.tokens(COMMIT_NS, 0, 5, "content")
    recorded.tokens(COMMIT_NS, 0, 2, "content")
    recorded.noted(Chunk(usage={"prompt_tokens": 17, "completion_tokens": 2}), COMMIT_NS, continues=True)
    recorded.migrated("a", "b", 5, 0.25, reason="broken")  # the client has its text only now
    recorded.ended("completed")
    reported = attributes(rig.request())
    assert reported[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == 7
    assert semconv.GEN_AI_USAGE_INPUT_TOKENS not in reported


@pytest.mark.parametrize(
    ("choices", "continues", "found"),
    [(1, False, 12), (1, True, None), (2, False, None)],
    ids=["its own", "with what was carried", "one of several prompts"],
)
def test_a_prompt_is_as_long_as_its_ids(rig: Rig, choices: int, continues: bool, found: int | None) -> None:
    recorded = rig.begin(asked=EngineRequest(choices=choices))
    recorded.noted(Chunk(Choice(0), prompt_ids=[5] * 12), COMMIT_NS, continues=continues)
    recorded.ended("completed")
    assert attributes(rig.request()).get(semconv.GEN_AI_USAGE_INPUT_TOKENS) == found


def test_a_choice_that_nobody_asked_for_is_told_by_who_serves_now(rig: Rig) -> None:
    recorded = rig.begin()
    recorded.served_by("a", exact_resume=True)
    recorded.serving("b")
    recorded.exact_resume(False)
    recorded.tokens(COMMIT_NS, 1, 1, "content")
    assert [(stream.instance, stream.exact_resume) for stream in recorded.streams.values()] == [("b", False)] * 2
    recorded.ended("completed")
    assert {segment.get(semconv.INSTANCE) for segment in rig.segments(1)[:1]} == {"a"}
    assert {row["instance"] for row in rig.sink.rows} == {"a"}


@pytest.mark.parametrize(
    "value",
    [
        {"usage": 5, "id": 7, "model": []},
        {"usage": {"prompt_tokens": -1, "completion_tokens": "9"}},
        {"usage": {"prompt_tokens": True, "completion_tokens": 1.5}, "id": None},
    ],
)
def test_what_a_reply_states_of_a_wrong_type_is_left_out(rig: Rig, value: dict[str, Any]) -> None:
    recorded = rig.begin()
    recorded.noted(Chunk(**value), COMMIT_NS, continues=False)
    recorded.ended("completed")
    reported = attributes(rig.request())
    assert not [name for name in reported if name.startswith(("gen_ai.usage", "gen_ai.response"))]
    assert rig.recorder.environment.bugs.count == 0


def test_migrations_are_events_and_a_number(rig: Rig) -> None:
    recorded = rig.begin()
    recorded.served_by("a", exact_resume=True)
    rig.wait(10)
    recorded.migrated("a", "b", 40, 0.125, rule="Stalled")
    rig.wait(10)
    recorded.migrated("b", "c", 0, 1.5, reason="refused")
    recorded.ended("completed")
    span = rig.request()
    at_ns = OFFSET_NS + COMMIT_NS
    assert [(event.name, event.time_unix_nano - at_ns, attributes(event)) for event in span.events] == [
        (
            "otel_llm.migrated",
            10 * MS,
            {"from": "a", "to": "b", "tokens_carried": 40, "gap_seconds": 0.125, "rule": "Stalled"},
        ),
        (
            "otel_llm.migrated",
            20 * MS,
            {"from": "b", "to": "c", "tokens_carried": 0, "gap_seconds": 1.5, "reason": "refused"},
        ),
    ]
    assert attributes(span)["otel_llm.relay.migrations"] == 2


def test_a_request_that_was_never_moved_says_nothing_of_it(rig: Rig) -> None:
    rig.begin().ended("completed")
    assert "otel_llm.relay.migrations" not in attributes(rig.request())
    assert not rig.request().events


@pytest.mark.parametrize(
    ("outcome", "error", "status"),
    [
        ("completed", None, Status(code=Status.STATUS_CODE_UNSET)),
        ("cancelled", None, Status(code=Status.STATUS_CODE_UNSET)),
        ("error", "502", Status(code=Status.STATUS_CODE_ERROR, message="502")),
    ],
)
def test_a_request_ends_once(rig: Rig, outcome: str, error: str | None, status: Status) -> None:
    recorded = rig.begin()
    recorded.tokens(COMMIT_NS, 0, 1, "content")
    rig.wait(7)
    recorded.ended(outcome, error=error)
    sent = len(rig.host.sent)
    rig.wait(7)
    recorded.ended("completed")
    recorded.tokens(rig.host.now_ns, 0, 1, "content")
    recorded.noted(Chunk(Choice(0, "stop")), rig.host.now_ns, continues=False)
    recorded.migrated("a", "b", 0, 0.0)
    assert len(rig.host.sent) == sent
    span, reported = rig.request(), attributes(rig.request())
    assert (reported[semconv.OUTCOME], reported.get(semconv.ERROR_TYPE)) == (outcome, error)
    assert span.status == status
    assert times_ms(span) == (0, 7)
    assert [row["outcome"] for row in rig.sink.rows] == [outcome] == [row["outcome"] for row in rig.audited()]


def test_a_choice_that_finished_is_completed_whatever_came_then(rig: Rig) -> None:
    recorded = rig.begin(asked=EngineRequest(choices=2))
    recorded.noted(Chunk(Choice(1, "stop")), COMMIT_NS, continues=False)
    recorded.tokens(COMMIT_NS, 1, 1, "content")  # behind its finish
    recorded.ended("cancelled")
    assert [rig.segments(choice)[-1][semconv.OUTCOME] for choice in (0, 1)] == ["cancelled", "completed"]
    assert attributes(rig.request())[semconv.OUTCOME] == "cancelled"
    assert [rig.segments(choice)[-1][semconv.TOKENS] for choice in (0, 1)] == [0, 0]
    assert recorded.output_tokens == 0


@pytest.mark.parametrize(("after_ms", "tokens"), [(20, 2), (4999, 2), (5001, 1)])
def test_text_soon_behind_a_reason_goes_on(rig: Rig, after_ms: int, tokens: int) -> None:
    """Servers state a reason too early; the segments wait as long for more."""
    recorded = rig.begin()
    recorded.noted(Chunk(prompt_ids=[5]), rig.host.now_ns, continues=False)
    recorded.tokens(rig.host.now_ns, 0, 1, "content", "a", stated("content", 1))
    recorded.noted(Chunk(Choice(0, "stop")), rig.host.now_ns, continues=False)
    rig.wait(after_ms)
    rig.cut()
    recorded.tokens(rig.host.now_ns, 0, 1, "content", "b", stated("content", 1))
    recorded.ended("disconnected")
    [row] = rig.sink.rows
    assert (row["tokens"], row["outcome"]) == (tokens, "disconnected" if tokens == 2 else "completed")
    assert [row] == rig.audited()


def test_an_outcome_that_no_sender_may_state_is_refused_and_changes_nothing(rig: Rig) -> None:
    recorded = rig.begin()
    with pytest.raises(ValueError, match="lost"):
        recorded.ended("lost")
    recorded.ended("completed")
    assert [row["outcome"] for row in rig.audited()] == ["completed"]


def test_a_bug_of_the_rules_does_not_reach_the_stream(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = rig.begin()
    recorded.served_by("a", exact_resume=True)
    monkeypatch.setattr(FirstHand, "tokens", lambda *_: 1 / 0)
    for _ in range(3):
        recorded.tokens(COMMIT_NS, 0, 1, "content")
    recorded.ended("completed")
    assert [row["tokens"] for row in rig.audited()] == [3]
    assert rig.recorder.environment.bugs.count == 3
    assert len(caplog.records) == 1
