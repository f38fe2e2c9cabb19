"""Who can take a stream: failures in a row, their end, drains, and how a burst is spread. A clock that stands still."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from otel_llm.relay.backends.backends import FAILURES, Backend, Backends


@dataclass
class Told:
    """Backends under a clock that a test sets, and how often a change was told."""

    now_s: float = 100.0
    changes: int = 0
    backends: Backends = field(init=False)

    def __post_init__(self) -> None:
        found = [Backend("a", "http://a", models={"m": 9}), Backend("b", "http://b", group="g")]
        self.backends = Backends(found, lambda: self.now_s, eject_s=5.0)
        self.backends.changed = self._count

    def _count(self) -> None:
        self.changes += 1

    def open_names(self) -> list[str]:
        return [one.name for one in self.backends.open_to()]


def test_failures_in_a_row_eject_for_a_while() -> None:
    told = Told()
    a = told.backends.get("a")
    for _ in range(FAILURES - 1):
        told.backends.failed(a)
    told.backends.worked(a)
    for _ in range(FAILURES - 1):
        told.backends.failed(a)
    assert told.open_names() == ["a", "b"]
    assert told.changes == 0
    told.backends.failed(a)
    assert told.open_names() == ["b"]
    assert told.backends.rows()[0]["ejected"] is True
    assert told.changes == 1
    told.now_s += 4.9
    assert told.open_names() == ["b"]
    told.now_s += 0.1
    assert told.open_names() == ["a", "b"]
    assert told.backends.rows()[0]["ejected"] is False


def test_the_end_of_an_ejection_is_told_once() -> None:
    told = Told()
    a = told.backends.get("a")
    told.backends.readmit(a)
    assert told.changes == 0
    for _ in range(FAILURES):
        told.backends.failed(a)
    told.backends.readmit(a)
    assert told.changes == 1
    told.now_s += 5.0
    told.backends.readmit(a)
    told.backends.readmit(a)
    assert told.changes == 2


def test_changes_are_told_only_where_something_has_changed() -> None:
    told = Told()
    a = told.backends.get("a")
    told.backends.found(a, healthy=True)
    told.backends.serves(a, {"m": 9})
    assert told.backends.drain("a", draining=False)
    assert told.changes == 0
    told.backends.found(a, healthy=False)
    told.backends.serves(a, {"m": 10})
    assert told.backends.drain("a")
    assert told.backends.drain("a")
    assert told.changes == 3
    assert not told.backends.drain("nowhere")


@pytest.mark.parametrize("closed", ["healthy", "draining", "ejected"])
def test_one_that_takes_no_streams_is_not_chosen(closed: str) -> None:
    told = Told()
    a = told.backends.get("a")
    if closed == "healthy":
        told.backends.found(a, healthy=False)
    elif closed == "draining":
        told.backends.drain("a")
    else:
        for _ in range(FAILURES):
            told.backends.failed(a)
    assert {one.name for one in [told.backends.choose("least_load", ()) for _ in range(4)] if one} == {"b"}
    assert told.backends.choose("least_load", {"b"}) is None
    assert [one.name for one in told.backends.open_to(group="g")] == ["b"]
    assert told.backends.open_to(group="") == []


@pytest.mark.parametrize(("count", "prompt"), [(12, 8), (7, 3000)])
def test_a_burst_of_equal_requests_is_spread_evenly(count: int, prompt: int) -> None:
    told = Told()
    got: Counter[str] = Counter()
    for _ in range(count):
        chosen = told.backends.choose("least_load", ())
        assert chosen is not None
        told.backends.begin(chosen, prompt)
        got[chosen.name] += 1
    assert max(got.values()) - min(got.values()) <= 1


def test_a_stream_that_ends_takes_all_of_its_load_along() -> None:
    told = Told()
    a = told.backends.get("a")
    told.backends.begin(a, 10)
    told.backends.grow(a, 5)
    told.backends.begin(a, 1)
    assert (a.streams, a.tokens) == (2, 16)
    told.backends.end(a, 15)
    assert (a.streams, a.tokens) == (1, 1)
