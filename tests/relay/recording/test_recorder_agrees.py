"""What the rules of a relay judge is what an audit of its segments finds, to the last bit, whatever happened when."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.relay.recording import Choice as Part
from support.relay.recording import Chunk, EngineRequest, Rig, stated

from otel_llm import semconv
from otel_llm.relay.recording.recorded import Recorded
from otel_llm.slo.classes import Curve, Deadline, Fluidity, SloClass, SloClasses

MS = 1_000_000
READS = SloClass(name="reads", pace_ns=20 * MS, reads=(0, 1), deadline=Deadline("dslo", 200 * MS, 30 * MS))
PROMPTED = SloClass(name="prompted", fluidity=Fluidity(ttft=Curve(((0, 50 * MS), (1000, 900 * MS))), tbt_ns=9 * MS))
CLASSES = SloClasses((SloClass(name="chat"), READS, PROMPTED), default="chat")

choice_numbers = st.integers(0, 2)
instants = st.sampled_from([0, 0, 0.000001, 1, 10, 24.9999, 60, 251, 3000])
steps = st.one_of(
    st.tuples(st.just("wait"), instants),
    st.just(("cut",)),
    st.tuples(
        st.just("tokens"),
        choice_numbers,
        st.sampled_from([0, 1, 1, 1, 2, 7, 120]),
        st.sampled_from(["content", "content", "content", "reasoning", "tool"]),
        st.booleans(),
        instants,
    ),
    st.tuples(
        st.just("usage"),
        st.integers(0, 1200),
        st.booleans(),
        st.sampled_from([0, 1, 9, 40, 300]),
        st.sampled_from([None, None, 0, 3, 9]),
    ),
    st.tuples(st.just("prompt"), st.sampled_from([0, 9, 900])),
    st.tuples(st.just("heard"), instants),
    st.tuples(st.just("finish"), choice_numbers, instants),
    st.tuples(st.sampled_from(["serving", "served_by"]), st.sampled_from(["a", "b"])),
    st.tuples(st.sampled_from(["exact_resume", "blocked"]), st.booleans()),
    st.sampled_from([("disconnected",), ("connected",), ("migrated",)]),
)


def read_ns(recorded: Recorded, now_ns: int, lag_ms: float) -> int:
    """Return an instant that is reported so late, of this request."""
    return max(recorded.commit_ns, now_ns - round(lag_ms * MS))


def play(rig: Rig, recorded: Recorded, step: tuple[Any, ...]) -> None:
    verb, *given = step
    now_ns = rig.host.now_ns
    if verb in ("tokens", "finish", "usage", "prompt"):
        recorded.serving("a")  # nothing comes from a backend that was not asked
    if verb == "wait":
        rig.wait(given[0])
        rig.first_hand.advance(rig.host.now_ns + rig.recorder.environment.offset_ns)
    elif verb == "cut":
        rig.cut()
    elif verb == "tokens":
        choice, count, kind, exact, lag_ms = given
        if exact:
            reported = stated(kind, 4 * count)
            recorded.tokens(
                read_ns(recorded, now_ns, lag_ms), choice, count, kind, reported["delta"].get("content", ""), reported
            )
        else:
            recorded.text(read_ns(recorded, now_ns, lag_ms), choice, stated(kind, 4 * count))
    elif verb == "usage":
        prompt, continues, output, reasoning = given
        details = {} if reasoning is None else {"completion_tokens_details": {"reasoning_tokens": reasoning}}
        usage = {"prompt_tokens": prompt, "completion_tokens": output, **details}
        recorded.noted(Chunk(usage=usage), now_ns, continues=continues)
    elif verb == "prompt":
        recorded.noted(Chunk(prompt_ids=[7] * given[0]), now_ns, continues=False)
    elif verb == "finish":
        recorded.noted(Chunk(Part(given[0], "stop")), read_ns(recorded, now_ns, given[1]), continues=False)
    elif verb == "heard":
        recorded.heard(read_ns(recorded, now_ns, given[0]))
    elif verb == "served_by":
        recorded.served_by(given[0], exact_resume=given[0] == "a")
    elif verb == "migrated":
        recorded.migrated("a", "b", 3, 0.2, rule="R")
    else:
        getattr(recorded, verb)(*given)


LATE_USAGE = [
    ("tokens", 0, 1, "content", True, 0),
    ("finish", 0, 0),
    ("wait", 600),
    ("cut",),
    ("usage", 900, False, 9, None),
]
"""What the verdict of the first of two choices depends on is stated when it has long finished."""

LATE_PROMPT = [("finish", 1, 0), ("tokens", 0, 1, "content", True, 0), ("finish", 0, 0), ("prompt", 0)]
"""The length of the prompt is stated when both choices have finished, the one that was asked for and another."""
UNASKED = [("usage", 0, False, 9, None), ("tokens", 1, 1, "content", False, 0)]
"""A length is stated, and another choice is sent than the one that was asked for."""

STATED = [
    ("tokens", 0, 1, "reasoning", False, 0),
    ("wait", 60),
    ("tokens", 0, 1, "content", False, 0),
    ("wait", 60),
    ("finish", 0, 0),
    ("wait", 600),
    ("cut",),
    ("usage", 900, False, 40, 9),
]
"""A reply of two chunks states its length when it has long finished."""


@settings(max_examples=examples(300))
@example(slo_class="chat", choices=1, queued_s=None, script=LATE_PROMPT, outcome="completed", lag_ms=0)
@example(slo_class="chat", choices=1, queued_s=None, script=UNASKED, outcome="completed", lag_ms=0)
@example(slo_class="chat", choices=1, queued_s=0.3, script=STATED, outcome="completed", lag_ms=0)
@example(slo_class="prompted", choices=2, queued_s=7.25, script=LATE_USAGE, outcome="completed", lag_ms=0)
@given(
    slo_class=st.sampled_from(["chat", "reads", "prompted", "unknown"]),
    choices=st.integers(1, 2),
    queued_s=st.sampled_from([None, 0.0, 0.3, 7.25]),
    script=st.lists(steps, max_size=25),
    outcome=st.sampled_from(["completed", "cancelled", "error", "disconnected"]),
    lag_ms=instants,
)
def test_the_rules_judge_what_an_audit_finds(
    slo_class: str,
    choices: int,
    queued_s: float | None,
    script: list[tuple[Any, ...]],
    outcome: str,
    lag_ms: float,
) -> None:
    rig = Rig(CLASSES)
    recorded = rig.begin([(b"x-slo-class", slo_class.encode())], EngineRequest(choices=choices))
    if queued_s is not None:  # segment 0 is announced while the request waits for long
        rig.wait(1000 * queued_s)
        recorded.state({semconv.GEN_AI_LATENCY_QUEUE: queued_s})
    for step in script:
        play(rig, recorded, step)
    recorded.ended(outcome, read_ns(recorded, rig.host.now_ns, lag_ms))
    assert (rig.recorder.environment.bugs.count, rig.host.bugs) == (0, [])

    audited = rig.audited()
    by_choice = sorted(rig.sink.rows, key=lambda row: int(row["choice"] or 0))
    assert by_choice == sorted(audited, key=lambda row: int(row["choice"] or 0))
    assert {row["measured_at"] for row in audited} == {"relay"}
    assert len(audited) >= choices
    assert (rig.recorder.requests, rig.first_hand.streams) == ({}, {})
