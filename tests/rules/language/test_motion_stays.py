"""What holds until the next token is not looked at again before: which conditions those are."""

from __future__ import annotations

import pytest

from otel_llm.rules.language.condition import condition


@pytest.mark.parametrize(
    ("text", "polled", "stays"),
    [
        ("fluidity_index < 0.8", True, True),
        ("0.8 >= fluidity_index && deadlines > 20", True, True),
        ("deadline_misses >= 3 && slo_class == 'chat' && gap_seconds > 1.0", True, True),
        ("fluidity_index > 0.8", True, False),
        ("deadlines < 20 && fluidity_index < 0.8", True, False),
        ("deadlines == 20", True, False),
        ("fluidity_index < 0.8 || deadlines > 20", True, False),
        ("!(fluidity_index < 0.8)", True, False),
        ("fluidity_index < 0.8 && gap_seconds * idle_seconds > 2.0", True, False),
        ("gap_seconds * idle_seconds > 2.0", True, False),
        ("deadlines - deadline_misses > 3", True, False),
        ("gap_seconds > 2.0", False, True),
    ],
)
def test_time_alone_makes_it_true_and_never_false(text: str, polled: bool, stays: bool) -> None:
    motion = condition(text, "stream").motion
    assert (motion.polled, motion.stays) == (polled, stays)
