"""The table of open actions: each is completed once, and nothing is kept of it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.actions.execute.open_actions import Completion, OpenAction, OpenActions


def action(number: int, *exclusive: tuple[str, str], about: tuple[Any, ...] = ()) -> OpenAction[int]:
    return OpenAction(f"act_{number}", number, lambda _: None, "t", exclusive, about)


def test_an_instance_is_held_by_one_action() -> None:
    table: OpenActions[int] = OpenActions()
    held = ("instance", "a")
    table.open(action(1, held))
    assert table.refusal("act_1", []) == Completion("failed", "this very action is open already")
    assert table.refusal("act_2", [held]) == Completion(
        "budget", "act_1 is open for this instance", open_elsewhere=True
    )
    assert table.refusal("act_2", [("instance", "b"), ("request", "a")]) is None
    assert table.holder(held) is table.get("act_1")
    table.close("act_1", "done")
    assert table.refusal("act_2", [held]) is None
    assert table.holder(held) is None


def test_what_was_sent_is_not_withdrawn() -> None:
    table: OpenActions[int] = OpenActions()
    one = action(1)
    table.open(one)
    one.sent = True
    assert table.close("act_1", "resolved", unsent=True) is None
    assert table.close("act_1", "done") is one
    assert table.close("act_1", "done") is None
    assert table.outcomes == {"done": 1}


EVENTS = st.lists(st.tuples(st.sampled_from(["open", "close"]), st.integers(0, 8), st.integers(0, 2)), max_size=60)


@given(EVENTS)
@settings(max_examples=examples(200))
def test_it_keeps_what_is_open_and_nothing_else(events: list[tuple[str, int, int]]) -> None:
    table: OpenActions[int] = OpenActions()
    kept: dict[str, tuple[tuple[str, str], str]] = {}
    closed = 0
    for kind, number, place in events:
        name, held, about = f"act_{number}", ("instance", str(place)), f"firing {place}"
        if kind == "open":
            refused = name in kept or any(other == held for other, _ in kept.values())
            assert (table.refusal(name, [held]) is not None) is refused
            if not refused:
                table.open(action(number, held, about=(about,)))
                kept[name] = held, about
        else:
            assert (table.close(name, "done") is not None) is (name in kept)
            closed += name in kept
            kept.pop(name, None)
        assert len(table) == len(kept) == table.of_tenant("t")
        assert {one.id for one in table} == set(kept)
        for firing in ("firing 0", "firing 1", "firing 2"):
            found = {name for name, (_, about) in kept.items() if about == firing}
            assert {one.id for one in table.of(firing)} == found
            assert table.concerns(firing) is bool(found)
        assert table.is_idle is (not kept)
        assert table.outcomes.total() == closed
