"""Fair shares of a bounded table: who may add to it, and which entry gives way, whatever the owners do."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.examples import examples

from otel_llm.core.fair_shares import FairTable, has_room

OWNERS = ("a", "b", "c")


def filled(most: int, *owners: str, busy: bool = False) -> FairTable[int]:
    table = FairTable[int](most)
    for number, owner in enumerate(owners):
        table.admit(number, owner)
        if busy:
            table.hold(number)
    return table


@given(st.integers(1, 200), st.lists(st.sampled_from(OWNERS), max_size=400))
def test_no_owner_fills_a_table_whose_entries_stay(most: int, arrivals: list[str]) -> None:
    held: Counter[str] = Counter()
    for owner in arrivals:
        if has_room(held[owner], held.total(), most):
            held[owner] += 1
    assert held.total() <= most
    while has_room(held["a"], held.total(), most):
        held["a"] += 1
    assert all(number <= most - most // 8 for number in held.values())
    assert held.total() == most or has_room(0, held.total(), most)


def test_an_owner_alone_has_the_whole_table_and_its_oldest_idle_entry_gives_way() -> None:
    table = filled(4, *"aaaa")
    table.touch(0)
    table.hold(1)
    assert table.admit(4, "a") == [2]
    table.rest(1)
    assert [table.admit(number, "a") for number in (5, 6, 7)] == [[3], [0], [4]]
    assert (len(table), table.gave_way, table.is_full) == (4, 4, True)


def test_of_an_owner_whose_entries_are_in_use_a_new_one_is_refused() -> None:
    table = filled(4, *"aaaa", busy=True)
    assert table.admit(4, "a") == []
    assert 4 not in table
    assert len(table) == 4


def test_the_owner_with_the_largest_share_gives_way_even_if_all_its_entries_are_in_use() -> None:
    table = filled(4, *"aaaa", busy=True)
    assert table.admit(4, "b") == [0]
    assert table.admit(5, "b") == [1]
    assert table.admit(6, "b") == [4]  # both have half: of its own the idle one
    table.hold(5)
    table.hold(6)
    assert table.admit(7, "b") == []
    assert 7 not in table


def test_idle_entries_of_an_owner_within_its_share_do_not_give_way_to_others() -> None:
    table = filled(4, *"aabb")
    table.hold(0)
    table.hold(1)
    assert table.admit(4, "a") == []
    assert all(key in table for key in range(4))


def test_the_scarcer_of_two_resources_makes_the_share() -> None:
    table = FairTable[str](100, 1000)
    table.admit("long", "a", 1, 600)
    for number in range(4):
        table.admit(f"short {number}", "b", 1, 100)
    assert table.admit("one more", "b", 1, 100) == ["long"]
    assert table.admit("too long", "a", 1, 1001) == []
    assert "too long" not in table
    assert table.reserve(0, 700) == ["short 0", "short 1"]


class Tables(RuleBasedStateMachine):
    """A table beside a list of its entries, oldest use first."""

    @initialize(most=st.integers(1, 12))
    def begin(self, most: int) -> None:
        self.most, self.table, self.next = most, FairTable[int](most), 0
        self.entries: list[tuple[int, str]] = []
        self.busy: set[int] = set()

    def used(self, key: int) -> None:
        at = next(at for at, (one, _) in enumerate(self.entries) if one == key)
        self.entries.append(self.entries.pop(at))

    @rule(owner=st.sampled_from(OWNERS), busy=st.booleans())
    def add(self, owner: str, busy: bool) -> None:
        held = Counter(one for _, one in self.entries)
        idle = [key for key, one in self.entries if one == owner and key not in self.busy]
        gone = self.table.admit(self.next, owner)
        if len(self.entries) < self.most:
            assert gone == []
        elif max(held.values()) > held[owner] + 1:
            (loser,) = [one for key, one in self.entries if key in gone]
            assert held[loser] == max(held.values())
            its = [key for key, one in self.entries if one == loser]
            assert gone == ([key for key in its if key not in self.busy] or its)[:1]
        else:
            assert gone == idle[:1]
        assert (self.next in self.table) == (len(self.entries) < self.most or bool(gone))
        self.entries = [one for one in self.entries if one[0] not in gone]
        self.busy -= set(gone)
        if self.next in self.table:
            self.entries.append((self.next, owner))
            if busy:
                self.table.hold(self.next)
                self.busy.add(self.next)
        self.next += 1

    @rule(number=st.integers(0, 11), what=st.sampled_from(["touch", "hold", "rest", "drop"]))
    def change(self, number: int, what: str) -> None:
        if not self.entries:
            return
        key = self.entries[number % len(self.entries)][0]
        getattr(self.table, what)(key)
        self.used(key)
        if what == "hold":
            self.busy.add(key)
        elif what != "touch":
            self.busy.discard(key)
        if what == "drop":
            self.entries.pop()

    @invariant()
    def within_its_size(self) -> None:
        if hasattr(self, "table"):
            assert len(self.table) == len(self.entries) <= self.most
            assert all(key in self.table for key, _ in self.entries)


Tables.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=60)
test_which_entry_gives_way = Tables.TestCase
