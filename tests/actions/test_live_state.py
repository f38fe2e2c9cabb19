"""The state for the live page, compared with a slow count: who is closest to starving, which rules fire."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.scripted import one_rule
from support.examples import examples

from otel_llm.actions.sinks.console import Console
from otel_llm.actions.sinks.in_flight import count_by_group, facts_of
from otel_llm.actions.sinks.live_state import PAGE_STREAMS, live_state
from otel_llm.actions.sinks.sinks import Sinks
from otel_llm.evaluate.own_streams.first_hand import FirstHand
from otel_llm.evaluate.own_streams.own_stream import Identity, OwnStream
from otel_llm.formats.records import StreamKey
from otel_llm.live.feed import Collected
from otel_llm.live.history import Load
from otel_llm.live.selection import SORTS, Filter
from otel_llm.live.user_metrics import RUNWAY_BANDS, UserMetrics
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.shared.clock import FakeClock
from otel_llm.slo.classes import SloClass, SloClasses
from otel_llm.slo.token_events import TokenEvents

MS = 1_000_000
T0 = 1_790_000_000_000_000_000
CLASSES = SloClasses((SloClass(name="chat"), SloClass(name="code", pace_ns=50 * MS)), default="chat")
EVERY = Filter()


@dataclass
class Fleet:
    """Streams that a test owns; instants in ms since T0."""

    rules: RuleSet = field(default_factory=lambda: RuleSet(()))

    def __post_init__(self) -> None:
        self.clock = FakeClock(T0)
        self.sinks = Sinks(self.clock, Console(lambda line: None), UserMetrics(), None)
        self.owner = FirstHand(CLASSES, RuleEngine(self.rules), self.sinks)

    def begin(
        self,
        number: int,
        *,
        slo_class: str = "chat",
        model: str = "m",
        instance: str = "a",
        measured_at: str = "relay",
        at_ms: int = 0,
    ) -> OwnStream:
        key = (number.to_bytes(16, "big"), number.to_bytes(8, "big"), "default", 0)
        who = Identity(declared_class=slo_class, model=model, instance=instance, measured_at=measured_at)
        begun_ns = T0 + at_ms * MS
        return self.owner.begin(key, begun_ns, who, begun_ns)

    def tokens(self, stream: OwnStream, *instants: int) -> None:
        times = [T0 + instant * MS for instant in instants]
        self.owner.tokens(stream, TokenEvents(times), times[-1])

    def state(self, ms: int, *filters: Filter, followed: tuple[StreamKey, ...] = ()) -> Collected:
        self.owner.advance(T0 + ms * MS)
        return live_state(self.owner, self.owner.streams, self.sinks, T0 + ms * MS, filters, followed)


def numbers(state: Collected, chosen: Filter = EVERY) -> list[int]:
    return [int(row["trace_id"], 16) for row in state.pages[chosen]["streams"]]


def test_those_closest_to_starving_are_first_and_a_filter_sees_its_own() -> None:
    fleet = Fleet()
    full, dry, code = fleet.begin(1), fleet.begin(2, model="n", instance="b"), fleet.begin(3, slo_class="code")
    fleet.begin(4, measured_at="client")
    fleet.tokens(dry, 100)
    fleet.tokens(full, *[100] * 20)
    fleet.tokens(code, *[100] * 20)
    chosen = [EVERY, Filter("chat"), Filter("chat", "m", "a"), Filter(model="n"), Filter("none")]
    state = fleet.state(1000, *chosen)

    # Left of the text at 1,000 ms: 20 tokens from 100 ms on last 4 s, or 1 s at 50 ms a token.
    assert numbers(state) == [4, 2, 3, 1]
    assert [row["runway_s"] for row in state.pages[EVERY]["streams"]] == [-0.8, -0.7, 0.1, 3.1]
    assert [row["pace_s"] for row in state.pages[EVERY]["streams"]] == [0.2, 0.2, 0.05, 0.2]
    assert [numbers(state, one) for one in chosen[1:]] == [[4, 2, 1], [4, 1], [2], []]
    assert [state.pages[one]["matching"] for one in chosen] == [4, 3, 2, 1, 0]
    assert (state.fleets[None].shown["in_flight"], state.fleets[None].shown["waiting"]) == (4, 2)
    assert state.fleets[None].shown["slo_classes"] == ["chat", "code"]
    assert (state.fleets[None].shown["models"], state.fleets[None].shown["instances"]) == (["m", "n"], ["a", "b"])
    loads = {key: (one.in_flight, one.waiting, one.totals.tokens_read) for key, one in state.fleets[None].loads.items()}
    assert loads == {("chat", "relay"): (2, 1, 21), ("chat", "client"): (1, 1, 0), ("code", "relay"): (1, 0, 20)}


def test_an_end_is_counted_and_the_stream_is_gone() -> None:
    fleet = Fleet()
    met, missed = fleet.begin(1), fleet.begin(2)
    fleet.tokens(met, 100)
    fleet.owner.end(met, T0 + 200 * MS, "completed", T0 + 200 * MS)
    fleet.owner.end(missed, T0 + 300 * MS, "error", T0 + 300 * MS)
    state = fleet.state(1000, EVERY, followed=(met.key,))
    load = state.fleets[None].loads["chat", "relay"]
    assert (load.in_flight, load.waiting, load.totals.met, load.totals.missed) == (0, 0, 1, 1)
    assert load.totals.smooth_tokens == pytest.approx(1 - 2.5 * 0.1), "it waited from 200 ms, its reading line, to 300"
    assert (state.pages[EVERY], state.streams) == ({"matching": 0, "streams": []}, {})
    assert [row()["outcome"] for row in state.fleets[None].recent] == ["completed", "error"]


def test_a_followed_stream_has_its_delivery_and_its_reader() -> None:
    fleet = Fleet()
    stream = fleet.begin(1)
    fleet.tokens(stream, 100, 100, 1000)
    found = fleet.state(1100, followed=(stream.key, (b"\0" * 16, b"\0" * 8, "default", 0))).streams
    assert list(found) == [stream.key]
    assert found[stream.key]["row"]["tokens_read"] == 3
    assert found[stream.key]["curve"] == {
        "n": [1, 2, 3],
        "delivered_s": [0.1, 0.1, 1.0],
        "read_s": [0.3, 0.5, 1.2],
        "pace_s": 0.2,
        "start_s": 0.2,
    }
    fleet.tokens(stream, 1150)  # its times can still grow
    assert fleet.state(1200, followed=(stream.key,)).streams[stream.key]["curve"]["n"] == [1, 2, 3, 4]


def test_the_rules_that_fire_now_and_on_which_stream() -> None:
    fleet = Fleet(one_rule("gap_seconds > 0.5"))
    name = fleet.rules.rules[0].name
    stalled, other = fleet.begin(1), fleet.begin(2)
    fleet.tokens(stalled, 100)
    fleet.tokens(other, 100, 900)
    state = fleet.state(1000, EVERY)
    assert state.fleets[None].shown["rules"] == [{"rule": name, "scope": "stream", "firing": 1, "on": []}]
    fired = {int(row["trace_id"], 16): row["rules"] for row in state.pages[EVERY]["streams"]}
    assert fired == {1: [name], 2: []}
    assert [one["rule"] for one in state.fleets[None].shown["decisions"]] == [name]
    fleet.tokens(stalled, 1100)
    assert fleet.state(1200, EVERY).fleets[None].shown["rules"] == []


@pytest.mark.parametrize(
    ("sort", "first"), [("runway", [1, 3, 2]), ("idle", [3, 1, 2]), ("age", [1, 2, 3]), ("tokens", [2, 3, 1])]
)
def test_the_orders_of_a_page(sort: str, first: list[int]) -> None:
    fleet = Fleet()
    early = fleet.begin(1)
    fleet.tokens(early, 100)  # dry from 300 ms on: 700 ms at 1,000 ms
    full = fleet.begin(2, at_ms=100)
    fleet.tokens(full, *[150] * 9)
    late = fleet.begin(3, at_ms=150)
    fleet.tokens(late, 995, 995)  # 645 ms behind its line from 350 ms on, and there is text again
    assert numbers(fleet.state(1000, Filter(sort=sort)), Filter(sort=sort)) == first


@pytest.mark.parametrize(
    ("runway_ns", "band"), [(-1, 0), (0, 1), (10**9 - 1, 1), (10**9, 2), (3 * 10**9, 3), (10 * 10**9, 4)]
)
def test_a_runway_at_a_bound_is_in_the_band_above_it(runway_ns: int, band: int) -> None:
    fleet = Fleet()
    stream = fleet.begin(1)
    table = fleet.owner.table
    counts = count_by_group(table, table.slots_in_flight(), np.array([runway_ns]))
    assert counts == {stream.group: [int(at == band) for at in range(len(RUNWAY_BANDS))]}


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from("mn"), st.sampled_from("ab")), min_size=1, max_size=80))
def test_a_page_is_the_top_of_the_sorted_fleet(drawn: list[tuple[int, str, str]]) -> None:
    fleet = Fleet()
    streams = []
    for number, (tokens, model, instance) in enumerate(drawn, 1):
        stream = fleet.begin(number, model=model, instance=instance)
        if tokens:
            fleet.tokens(stream, *[100] * tokens)
        streams.append(stream)
    wanted = [EVERY, Filter(model="m"), Filter("chat", "n", "b")]
    chosen = [one._replace(sort=sort) for one in wanted for sort in SORTS]
    state = fleet.state(2000, *chosen)
    for one in chosen:
        rows = [facts_of(stream, T0 + 2000 * MS) for stream in streams if one.matches(*stream.group[:3])]
        fact = one.sort if one.sort == "tokens" else f"{one.sort}_s"
        ranked = sorted((float(str(row[fact])) for row in rows), reverse=one.sort != "runway")
        assert [row[fact] for row in state.pages[one]["streams"]] == ranked[:PAGE_STREAMS]
        assert state.pages[one]["matching"] == len(rows)
    assert state.fleets[None].loads["chat", "relay"] == Load(
        len(streams), state.fleets[None].shown["waiting"], state.fleets[None].loads["chat", "relay"].totals
    )
