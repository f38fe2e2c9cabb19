"""Which backends are healthy, ejected, or the least bad. A clock that stands still."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from otel_llm.relay.backends.backend import EJECTS, MISSES, MOST_SEEN, RECENT_S, Backend
from otel_llm.relay.backends.backends import STREAMING_S, Backends
from otel_llm.relay.backends.blame import Blame

ME, YOU = "me", "you"


@dataclass
class Fleet:
    """Backends `a`, `b`, `c`, ... of one group under a clock that a test sets."""

    size: int = 4
    max_share: float = 0.5
    kind: str = "vllm"
    now_s: float = 100.0
    changes: int = 0
    backends: Backends = field(init=False)

    def __post_init__(self) -> None:
        found = [Backend(name, "http://h", self.kind) for name in "abcdefgh"[: self.size]]
        self.backends = Backends(found, lambda: self.now_s, 5.0, self.max_share)
        self.backends.changed = self._count

    def _count(self) -> None:
        self.changes += 1

    def __getitem__(self, name: str) -> Backend:
        return self.backends.get(name)

    def fail(self, name: str, times: int = EJECTS, client: str | None = None) -> None:
        """Let a backend fail; requests of a client each, or of this one."""
        for number in range(times):
            self.backends.failed(self[name], str(number) if client is None else client)

    def miss(self, name: str, times: int = MISSES) -> None:
        for _ in range(times):
            self.backends.missed(self[name])

    @property
    def open(self) -> str:
        return "".join(one.name for one in self.backends.open_to())

    @property
    def ejected(self) -> str:
        return "".join(str(row["name"]) for row in self.backends.rows() if row["ejected"])


# Ejection.


def test_failures_eject_for_a_while_and_the_end_is_told_once() -> None:
    fleet = Fleet()
    fleet.fail("a", EJECTS - 1)
    assert (fleet.open, fleet.changes) == ("abcd", 0)
    fleet.fail("a", 1)
    assert (fleet.open, fleet.ejected, fleet.changes) == ("bcd", "a", 1)
    fleet.backends.readmit(fleet["a"])
    assert fleet.changes == 1
    fleet.now_s += 5.0
    assert (fleet.open, fleet.ejected) == ("abcd", "")
    fleet.backends.readmit(fleet["a"])
    fleet.backends.readmit(fleet["a"])
    assert fleet.changes == 2
    fleet.fail("a", EJECTS - 1)
    assert fleet.open == "abcd", "it begins anew"


def test_each_request_that_is_served_makes_up_for_one_failure() -> None:
    """Were one enough for all, a backend that fails two of three requests would never be ejected."""
    fleet = Fleet()
    for _ in range(3):
        fleet.fail("a", 1)
        fleet.backends.worked(fleet["a"])
    assert fleet.open == "abcd"
    fleet.fail("a", 2)
    fleet.backends.worked(fleet["a"])
    fleet.fail("a", 1)
    assert fleet.open == "abcd"
    fleet.fail("a", 1)
    assert fleet.open == "bcd"


def test_failures_of_long_ago_do_not_eject() -> None:
    fleet = Fleet()
    fleet.fail("a", EJECTS - 1)
    fleet.now_s += RECENT_S
    fleet.fail("a", 1)
    assert fleet.open == "abcd"


@pytest.mark.parametrize(
    ("size", "max_share", "most"),
    [
        (1, 0.5, 0),
        (2, 0.5, 1),
        (3, 0.5, 1),
        (4, 0.5, 2),
        (5, 0.5, 2),
        (3, 1.0, 2),
        (1, 1.0, 0),
        (4, 0.0, 0),
        (5, 0.6, 3),
    ],
)
def test_a_share_of_a_group_is_ejected_and_never_its_last(size: int, max_share: float, most: int) -> None:
    fleet = Fleet(size, max_share)
    for name in "abcdefgh"[:size]:
        fleet.fail(name)
    assert len(fleet.ejected) == most
    assert len(fleet.open) == size - most


@pytest.mark.parametrize("other", ["refused", "missed", "drained"])
def test_the_last_one_that_takes_requests_is_not_ejected(other: str) -> None:
    fleet = Fleet(2)
    if other == "refused":
        fleet.backends.refused(fleet["b"])
    elif other == "missed":
        fleet.miss("b")
    else:
        fleet.backends.drain("b")
    fleet.fail("a", 2 * EJECTS)
    assert (fleet.open, fleet.ejected) == ("a", "")


def test_an_ejected_backend_is_the_last_choice_and_still_one() -> None:
    fleet = Fleet(2)
    fleet.fail("a")
    assert [one.name for one in fleet.backends.open_to(exclude={"b"})] == ["a"]
    fleet.backends.drain("a")
    assert fleet.backends.open_to(exclude={"b"}) == []


def test_groups_are_apart() -> None:
    backends = Backends([Backend(name, "http://h", group=name[0]) for name in ("a1", "a2", "b1")], lambda: 100.0)
    for one in backends:
        for client in range(EJECTS):
            backends.failed(one, str(client))
    assert [row["name"] for row in backends.rows() if row["ejected"]] == ["a1"]


def test_one_client_alone_ejects_one_backend_at_a_time() -> None:
    fleet = Fleet()
    for name in "abcd":
        fleet.fail(name, 2 * EJECTS, client=ME)
    assert fleet.ejected == "a"
    fleet.fail("b", client=YOU)
    assert fleet.ejected == "ab", "each for itself"
    fleet.now_s += 5.0
    fleet.fail("c", EJECTS, client=ME)
    assert fleet.ejected == "c", "one is free again"
    fleet.fail("d", EJECTS - 1, client=ME)
    fleet.fail("d", 1, client=YOU)
    assert fleet.ejected == "cd", "it failed for several"


# What the failures of one request say.


def test_a_failure_counts_once_another_backend_has_served_the_request() -> None:
    fleet = Fleet()
    for client in range(EJECTS):
        blame = Blame(fleet.backends, str(client))
        blame.failed(fleet["a"], broke=True)
        assert fleet.open == "abcd"
        blame.served(fleet["b"])
        blame.served(fleet["b"])
    assert fleet.ejected == "a"


def test_a_request_that_fails_everywhere_counts_against_none() -> None:
    fleet = Fleet()
    for client in range(9):
        blame = Blame(fleet.backends, str(client))
        for name in "abc":
            blame.failed(fleet[name], broke=False)
    assert fleet.open == "abcd"
    assert not blame.last


def test_a_backend_that_served_the_next_try_itself_has_not_failed() -> None:
    fleet = Fleet()
    for client in range(9):
        blame = Blame(fleet.backends, str(client))
        blame.failed(fleet["a"], broke=True)
        blame.served(fleet["a"])
    assert fleet.open == "abcd"


def test_a_request_that_broke_two_backends_has_one_more_try_and_counts_against_none() -> None:
    fleet = Fleet()
    for client in range(9):
        blame = Blame(fleet.backends, str(client))
        blame.failed(fleet["a"], broke=True)
        assert not blame.last
        blame.failed(fleet["b"], broke=True)
        assert (blame.last, blame.over) == (True, False)
        if client % 2:
            blame.failed(fleet["c"], broke=False)
            assert blame.over
        else:
            blame.served(fleet["c"])
            assert (blame.last, blame.over) == (False, False), "a token in between begins anew"
    assert fleet.open == "abcd"


def test_a_refused_connection_closes_a_backend_at_once_as_no_request_can_cause_it() -> None:
    fleet = Fleet()
    Blame(fleet.backends, ME).failed(fleet["a"], broke=False, refused=True)
    assert fleet.open == "bcd"
    assert not fleet["a"].healthy


def test_one_without_a_health_path_is_ejected_as_nothing_else_would_open_it_again() -> None:
    fleet = Fleet(kind="openai")
    for client in range(EJECTS):
        assert fleet["a"].healthy
        blame = Blame(fleet.backends, str(client))
        blame.failed(fleet["a"], broke=False, refused=True)
        blame.served(fleet["b"])
    assert fleet.ejected == "a"


def test_the_steadiest_have_the_fewest_recent_failures_whatever_their_cause_was() -> None:
    fleet = Fleet(3)
    every = list(fleet.backends)
    for _ in range(2 * MOST_SEEN):
        fleet.backends.seen_to_fail(fleet["a"])
    fleet.backends.seen_to_fail(fleet["b"])
    assert [one.name for one in fleet.backends.steadiest(every)] == ["c"]
    assert [one.name for one in fleet.backends.steadiest(every[:2])] == ["b"]
    fleet.now_s += RECENT_S
    assert len(fleet.backends.steadiest(every)) == 3
    assert fleet.backends.steadiest([]) == []


# Health.


def test_three_late_probes_in_a_row_close_a_backend_and_one_answer_opens_it() -> None:
    fleet = Fleet()
    fleet.backends.answered(fleet["a"])
    for _ in range(3):
        fleet.miss("a", MISSES - 1)
        assert fleet.open == "abcd"
        fleet.backends.answered(fleet["a"])
    fleet.miss("a")
    assert fleet.open == "bcd"
    fleet.backends.answered(fleet["a"])
    assert fleet.open == "abcd"


def test_one_that_never_answered_has_no_credit() -> None:
    fleet = Fleet()
    fleet.miss("a", 1)
    assert fleet.open == "bcd"


def test_a_backend_that_is_streaming_is_alive_whatever_its_health_path_says() -> None:
    fleet = Fleet()
    fleet.backends.answered(fleet["a"])
    for _ in range(4 * MISSES):
        fleet.backends.heard(fleet["a"], fleet.now_s)
        fleet.now_s += STREAMING_S / 2
        fleet.miss("a", 1)
    assert fleet.open == "abcd"
    fleet.now_s += STREAMING_S
    fleet.miss("a")
    assert fleet.open == "bcd"
    fleet.backends.heard(fleet["a"], fleet.now_s)
    assert fleet.open == "abcd", "a byte is enough"
    fleet.backends.refused(fleet["a"])
    fleet.backends.heard(fleet["a"], fleet.now_s)
    assert fleet.open == "bcd", "it finishes its streams, and takes no others"


# Panic.


def test_with_none_healthy_the_least_bad_take_requests(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    for name in "abcd":
        fleet.backends.answered(fleet[name])
    with caplog.at_level(logging.WARNING):
        fleet.fail("a")
        fleet.miss("b")
        fleet.miss("c")
        assert (fleet.open, fleet.backends.panics, caplog.messages) == ("d", 0, [])
        fleet.backends.refused(fleet["d"])
        assert (fleet.open, fleet.backends.panics) == ("a", 1)
        fleet.backends.refused(fleet["a"])
        assert (fleet.open, fleet.backends.panics) == ("bc", 1)
    assert caplog.messages == ["no backend is healthy: requests go to the least bad"]
    assert [one.name for one in fleet.backends.open_to(exclude={"b", "c"})] == ["a", "d"]
    assert fleet.backends.open_to(exclude={"a", "b", "c", "d"}) == []
    fleet.backends.answered(fleet["d"])
    assert (fleet.open, fleet.backends.panics) == ("d", 0)
    assert fleet.backends.open_to(exclude={"d"}) == [], "one is healthy"


def test_those_that_are_drained_take_none_in_a_panic() -> None:
    fleet = Fleet(2)
    fleet.backends.drain("a")
    fleet.backends.refused(fleet["b"])
    assert (fleet.open, fleet.backends.panics) == ("b", 1)
    fleet.backends.drain("b")
    assert (fleet.open, fleet.backends.panics) == ("", 0)


def test_one_group_panics_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    backends = Backends([Backend(name, "http://h", group=name) for name in "ab"], lambda: 100.0)
    backends.refused(backends.get("b"))
    assert [one.name for one in backends.open_to("b")] == ["b"]
    assert [one.name for one in backends.open_to()] == ["a"]
    assert backends.panics == 1
    assert caplog.messages == ["no backend of b is healthy: requests go to the least bad"]
