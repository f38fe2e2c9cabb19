"""The parameters of a request for events."""

from __future__ import annotations

import pytest

from otel_llm.live.selection import Filter, Selection, SelectionError, key_text, selection_of

KEY = (bytes(range(16)), bytes(range(8)), "default", 2)


def test_a_query_names_a_filter_and_a_stream() -> None:
    assert selection_of({}) == Selection(Filter(None, None, None), None)
    reported = {"slo_class": "chat", "model": "m & <b>", "instance": "", "sort": "idle", "stream": key_text(KEY)}
    assert selection_of(reported) == Selection(Filter("chat", "m & <b>", "", "idle"), KEY)


@pytest.mark.parametrize(
    "reported",
    [
        {"token": "a-secret"},
        {"stream": ""},
        {"sort": "name"},
        {"stream": key_text(KEY).upper()},
        {"stream": key_text(KEY) + "\n"},
        {"stream": f"{'0' * 32}-{'0' * 16}-²"},
        {"stream": f"{'0' * 32}-{'0' * 16}-9999999"},
    ],
)
def test_another_is_refused_without_repeating_it(reported: dict[str, str]) -> None:
    with pytest.raises(SelectionError) as refused:
        selection_of(reported)
    assert not any(len(value) > 1 and value in str(refused.value) for value in reported.values())


@pytest.mark.parametrize(
    ("chosen", "matches"),
    [
        (Filter(), True),
        (Filter("chat"), True),
        (Filter("chat", "m", "a"), True),
        (Filter("code"), False),
        (Filter(model="M"), False),
        (Filter("chat", instance="b"), False),
        (Filter(instance=""), False),
    ],
)
def test_a_filter_wants_every_name_it_has(chosen: Filter, matches: bool) -> None:
    assert chosen.matches("chat", "m", "a") is matches
    assert chosen.matches_all is (chosen == Filter())
