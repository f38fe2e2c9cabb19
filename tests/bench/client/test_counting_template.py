"""Replies that the server counts: recognised by their bytes or parsed, they give the same tokens."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.bench.replies import HEAD, event, exchanged, framed
from support.examples import examples
from support.sse_server import chunk, usage, usage_of

from otel_llm.bench.client.counting_template import CountingTemplate
from otel_llm.bench.client.observed_request import ObservedRequest

TEXTS = st.one_of(
    st.sampled_from(["word ", "é", "", '"', "\\", "\n", 'content": "x', '"completion_tokens": 5', "data: "]),
    st.text(max_size=6),
)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Draw the events of a reply: mostly counted one by one, with everything that may break the row."""
    events, total = [event(chunk({"role": "assistant", "content": ""}))], 0
    separators = draw(st.sampled_from([None, (",", ":")]))
    for _ in range(draw(st.integers(1, 25))):
        count = draw(st.sampled_from([1, 1, 1, 1, 0, 2, 5]))
        total += count
        delta = {draw(st.sampled_from(["content", "content", "content", "reasoning_content"])): draw(TEXTS)}
        more: dict[str, Any] = {}
        if draw(st.integers(0, 9)):
            stated = total + draw(st.sampled_from([0, 0, 0, 0, 0, 1, -1]))
            more["usage"] = {"prompt_tokens": 7, "total_tokens": 7 + stated, "completion_tokens": max(0, stated)}
        if not draw(st.integers(0, 15)):
            more["token_ids"] = [1] * count
        finish = "stop" if not draw(st.integers(0, 30)) else None
        value = chunk(delta, index=int(not draw(st.integers(0, 30))), finish=finish, **more)
        events.append(b"data: " + json.dumps(value, separators=separators).encode() + b"\n\n")
    events.append(event(usage(total)))
    events.append(event(b"[DONE]"))
    return events


def _facts(request: ObservedRequest) -> tuple[object, ...]:
    return request.times_ns, request.kinds, request.outcome, request.end_ns, request.token_basis, request.error


@settings(max_examples=examples(300))
@given(streams())
def test_whole_events_and_halves_give_the_same_tokens(events: list[bytes]) -> None:
    whole = [(index, framed(data)) for index, data in enumerate(events)]
    halves = [
        (index, framed(part))
        for index, data in enumerate(events)
        for part in (data[: len(data) // 2], data[len(data) // 2 :])
    ]
    assert _facts(exchanged([(0, HEAD), *whole])) == _facts(exchanged([(0, HEAD), *halves]))


def test_a_running_total_contains_the_chunks_that_had_none() -> None:
    """Two tokens with usage, two without, then a total of eight: the last chunk has four, whatever was recognised."""
    thought = event(chunk({"reasoning_content": "word "}))
    two, eight = (event(chunk({"content": "word "}, finish="stop", usage=usage_of(total))) for total in (2, 8))
    events = [two, thought, thought, eight, event(usage(8)), event(b"[DONE]")]
    reads = [(index, framed(data)) for index, data in enumerate(events)]
    assert list(exchanged([(0, HEAD), *reads]).times_ns) == [0, 0, 1, 2, 3, 3, 3, 3]


def _counted(text: str, tokens: int) -> bytes:
    stated = {"prompt_tokens": 7, "total_tokens": 7 + tokens, "completion_tokens": tokens}
    return event(chunk({"content": text}, usage=stated))


def test_the_next_event_is_recognised_and_no_other() -> None:
    template = CountingTemplate()
    template.learn(_counted("one ", 9), 9)
    assert template.of(_counted("two ", 10))
    assert template.of(_counted("three ", 11))
    assert not template.of(_counted("again ", 11))
    assert not template.of(_counted("", 12))
    assert not template.of(_counted('"', 12))
    assert not template.of(_counted("two ", 12) + _counted("more ", 13))
    assert template.of(_counted("four ", 12))


def test_a_count_that_is_not_the_replys_own_is_not_continued() -> None:
    template = CountingTemplate()
    template.learn(_counted("one ", 9), 8)
    assert not template.of(_counted("two ", 10))
