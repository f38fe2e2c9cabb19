"""A feed of the live page over a state that a test sets, and a reader of server-sent events."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from otel_llm.formats.records import StreamKey
from otel_llm.live.feed import Collected, Feed, Fleet
from otel_llm.live.history import Key, Load
from otel_llm.live.selection import Filter
from otel_llm.shared.clock import FakeClock

HOSTILE = "<img src=x onerror=alert(1)>\n\ndata: {}\n\u202e"
"""A model's name as a sender may choose it: markup, lines of an event's form, a direction override."""


@dataclass
class Fed:
    """The state that a feed collects. `asked`: the filters and streams of each collection."""

    clock: FakeClock = field(default_factory=FakeClock)
    loads: dict[Key, Load] = field(default_factory=dict)
    fleet: dict[str, Any] = field(default_factory=dict)
    page: dict[str, Any] = field(default_factory=lambda: {"matching": 0, "streams": []})
    streams: dict[StreamKey, dict[str, Any]] = field(default_factory=dict)
    recent: list[Callable[[], Mapping[str, Any]]] = field(default_factory=list)
    problem: Exception | None = None
    asked: list[tuple[set[Filter], set[StreamKey]]] = field(default_factory=list)

    def collect(self, filters: Collection[Filter], followed: Collection[StreamKey]) -> Collected:
        self.asked.append((set(filters), set(followed)))
        if self.problem is not None:
            raise self.problem
        pages = {one: {**self.page, "filter": list(one)} for one in filters}
        streams = {key: row for key, row in self.streams.items() if key in followed}
        fleet = Fleet(self.fleet, self.loads, self.recent)
        tenants = {None, *(one.tenant for one in filters)}
        return Collected(self.clock.now_ns(), dict.fromkeys(tenants, fleet), pages, streams)

    def feed(self, **options: Any) -> Feed:
        """Return a feed of this state; `tick` it, or `start` it."""
        return Feed(self.collect, now_ns=self.clock.now_ns, service="test", links={"metrics": "/metrics"}, **options)


def events(text: bytes | str | Iterable[bytes]) -> list[tuple[str, Any]]:
    """Return the events in a text, by the rules of the HTML standard as far as they are used."""
    if not isinstance(text, bytes | str):
        text = b"".join(text)
    found = []
    for block in (text.decode() if isinstance(text, bytes) else text).split("\n\n")[:-1]:
        first, second = block.split("\n")
        assert first.startswith("event: ")
        assert second.startswith("data: ")
        found.append((first.removeprefix("event: "), json.loads(second.removeprefix("data: "))))
    return found
