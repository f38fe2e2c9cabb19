"""What a load holds of a reply is bounded, whatever the server claims or sends."""

from __future__ import annotations

from otel_llm import semconv
from otel_llm.bench.client.observed_request import ObservedRequest
from otel_llm.slo.classes import CONTENT, KINDS

REASONING = KINDS.index("reasoning")


def test_tokens_beyond_those_of_a_stream_are_left_out() -> None:
    one = ObservedRequest(0, 0, 0, 10, 10)
    one.extend([1, (2, ((0, REASONING, 3, False),)), (3, ((0, CONTENT, 2**40, False),)), 4])
    one.extend([5, (6, ((0, CONTENT, 1, False),))])
    assert len(one.times_ns) == len(one.kinds) == semconv.MAX_STREAM_TOKENS
    assert one.times_ns[:5].tolist() == [1, 2, 2, 2, 3]
    assert (one.times_ns[-1], sum(one.kinds)) == (3, 3 * REASONING)
