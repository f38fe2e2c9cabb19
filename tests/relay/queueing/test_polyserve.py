"""PolyServe in the relay: the model of a backend, by hand, and where the policy sends requests. No sockets."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from support.scheduling.profiles import SMALL_ENGINE

from otel_llm.relay.backends.backend import Backend
from otel_llm.relay.backends.backends import Backends
from otel_llm.relay.queueing.polyserve_placer import Placement, PolyServePlacer
from otel_llm.relay.queueing.replica_model import PlacedRequest, ReplicaModel
from otel_llm.scheduling.profiles.profile import LinearProfile, Terms
from otel_llm.scheduling.release_order import WaitingRequest

MS = 1_000_000
PROFILE = LinearProfile(
    name="small",
    terms=Terms(base=Fraction(10 * MS), per_decode=Fraction(2 * MS), per_chunk_token=Fraction(MS, 10)),
    **SMALL_ENGINE | {"max_batched_tokens": 100, "max_batch": 8, "kv_tokens": 100_000},
)
"""10 ms an iteration, 2 ms a decode, 0.1 ms a token of a chunk of at most 100."""


@dataclass
class Engine:
    """A model of one backend, and the counts of `Backends` that a relay keeps beside it."""

    now_ms: float = 0.0
    backends: Backends = field(init=False)
    model: ReplicaModel = field(init=False)

    def __post_init__(self) -> None:
        backend = Backend("a", "http://a", profile=PROFILE)
        self.backends = Backends([backend], lambda: self.now_ms / 1e3)
        self.model = ReplicaModel(0, backend, self.backends, PROFILE)

    @property
    def now_ns(self) -> int:
        return round(self.now_ms * MS)

    def place(self, number: int, context: int) -> PlacedRequest:
        request = PlacedRequest(number, 0, context, 10**12, late=False)
        self.backends.begin(self.model.backend, context)
        self.model.advance(self.now_ns)
        self.model.place(request, self.now_ns)
        return request

    def read(self, request: PlacedRequest, tokens: int = 1) -> bool:
        self.backends.grow(self.model.backend, tokens)
        return self.model.read(request, tokens, self.now_ns)

    def prefills(self) -> list[tuple[int, int, int]]:
        """Return number, remaining and prior tokens of each."""
        self.model.advance(self.now_ns)
        return [(one.request.number, one.remaining, one.prior) for one in self.model.prefills()]


def test_an_idle_engine_begins_an_iteration_with_the_prompt() -> None:
    engine = Engine()
    assert engine.model.end_ns is None
    engine.place(1, 60)
    assert engine.prefills() == [(1, 0, 60)]
    assert engine.model.end_ns == 16 * MS
    assert (engine.model.decodes, engine.model.requests, engine.model.tokens) == (0, 1, 60)


def test_a_long_prompt_is_prefilled_in_chunks_as_time_passes() -> None:
    """Chunks of 100 last 20 ms; the next prompt shares the iteration of the last one."""
    engine = Engine()
    engine.place(1, 250)
    engine.place(2, 90)
    assert engine.prefills() == [(1, 150, 100), (2, 90, 0)]
    engine.now_ms = 19.9
    assert engine.prefills() == [(1, 150, 100), (2, 90, 0)]
    engine.now_ms = 20.0
    assert engine.prefills() == [(1, 50, 200), (2, 90, 0)]
    engine.now_ms = 40.0
    assert engine.prefills() == [(1, 0, 250), (2, 40, 50)]
    assert engine.model.end_ns == 60 * MS


def test_a_first_token_begins_the_next_iteration_when_it_is_read() -> None:
    engine = Engine()
    first = engine.place(1, 60)
    engine.now_ms = 21.0  # 5 ms later than predicted
    assert engine.read(first)
    assert engine.model.decodes == 1
    assert engine.model.decode_context == 61
    assert engine.model.end_ns == (21 + 12) * MS
    engine.place(2, 50)
    assert engine.prefills() == [(2, 50, 0)], "it is in no iteration until this one is over"
    engine.now_ms = 33.0
    assert not engine.read(first)
    assert engine.prefills() == [(2, 0, 50)]
    assert engine.model.end_ns == (33 + 12 + 5) * MS


def test_tokens_of_one_iteration_that_are_read_one_after_another_are_one_iteration() -> None:
    engine = Engine()
    both = [engine.place(number, 10) for number in (1, 2)]
    engine.now_ms = 12.0
    assert [engine.read(one) for one in both] == [True, True]
    engine.place(3, 30)
    for round_ in range(1, 4):
        engine.now_ms = 12.0 + 20 * round_
        engine.read(both[0])
        end_ns = engine.model.end_ns
        engine.now_ms += 0.5
        engine.read(both[1])
        assert engine.model.iterations == round_
        assert engine.model.end_ns == end_ns, "the next one began with the first token that was read"
    assert engine.prefills() == [(3, 0, 30)]
    assert engine.model.decode_context == 2 * 10 + 2 + 6


def test_a_first_token_within_an_iteration_gives_its_chunk_back_once() -> None:
    """Two first tokens 1 ms apart: the prompt behind them is in the iteration once, not twice."""
    engine = Engine()
    both = [engine.place(number, 10) for number in (1, 2)]
    engine.place(3, 250)
    assert engine.prefills()[2] == (3, 250, 0)
    engine.now_ms = 12.0
    engine.read(both[0])
    assert engine.prefills()[-1] == (3, 161, 89), "ten tokens of the second prompt are in it too"
    engine.now_ms = 13.0
    engine.read(both[1])
    assert engine.prefills() == [(3, 152, 98)]


def test_an_engine_without_requests_is_idle_and_a_stalled_one_costs_no_time_to_follow() -> None:
    engine = Engine()
    first = engine.place(1, 10)
    engine.now_ms = 11.0
    engine.read(first)
    engine.now_ms = 1e9
    engine.model.advance(engine.now_ns)
    assert engine.model.end_ns is not None
    assert engine.now_ns < engine.model.end_ns <= engine.now_ns + 12 * MS
    engine.model.end(first)
    engine.backends.end(engine.model.backend, 11)
    engine.model.advance(engine.now_ns)
    assert engine.model.end_ns is None


def test_a_backend_that_takes_none_looks_full() -> None:
    engine = Engine()
    engine.place(1, 10)
    engine.model.is_open = False
    assert (engine.model.requests, engine.model.tokens) == (PROFILE.max_batch, PROFILE.kv_tokens)


@dataclass
class Fleet:
    """A placer before backends, in two tiers: 20 ms and 50 ms a token."""

    names: str = "ab"
    now_ns: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        found = [Backend(name, f"http://{name}", profile=PROFILE) for name in self.names]
        self.backends = Backends(found, lambda: self.now_ns / 1e9)
        self.placer = PolyServePlacer(self.backends, [20 * MS, 50 * MS, 20 * MS], lambda: self.now_ns)

    def request(self, tpot_ms: int | None, prompt: int = 10, ttft_ms: int | None = 500) -> PlacedRequest:
        self.number += 1
        first_ns = None if ttft_ms is None else ttft_ms * MS
        token_ns = None if tpot_ms is None else tpot_ms * MS
        return self.placer.request(WaitingRequest(self.number, self.now_ns, prompt, 10, first_ns, token_ns))

    def send(self, request: PlacedRequest, *, others_wait: bool = False) -> tuple[str, Placement] | None:
        backend = self.placer.find(request, self.backends.open_to(), others_wait=others_wait)
        if backend is None:
            return None
        self.backends.begin(backend, request.context)
        return backend.name, self.placer.place(request, backend)

    def names_of(self, *requests: PlacedRequest) -> list[str | None]:
        sent = [self.send(request) for request in requests]
        return [None if one is None else one[0] for one in sent]


def test_a_tier_fills_one_backend_and_a_looser_one_goes_there_before_it_takes_another() -> None:
    fleet = Fleet()
    quick = fleet.names_of(*(fleet.request(20) for _ in range(4)))
    patient = fleet.names_of(*(fleet.request(50) for _ in range(4)))
    assert len(set(quick)) == 1
    assert patient[0] == quick[0], "the tighter tier has room for one (lazy promotion)"
    assert len(set(patient[1:])) == 1
    assert patient[1] != quick[0]


def test_a_tier_is_full_where_one_more_would_take_it_beyond_its_time_a_token() -> None:
    """10 ms and 2 ms a decode: five of 20 ms. The sixth waits while the other backend is of the looser tier."""
    fleet = Fleet()
    fleet.names_of(fleet.request(50))
    names = fleet.names_of(*(fleet.request(20) for _ in range(6)))
    assert names[5] is None
    assert len(set(names[:5])) == 1


def test_an_end_makes_room_and_first_tokens_are_told() -> None:
    fleet = Fleet("a")
    reported: list[int] = []
    fleet.placer.freed = lambda: reported.append(1)
    sent = [fleet.send(fleet.request(20)) for _ in range(5)]
    waiting = fleet.request(20)
    assert fleet.send(waiting) is None
    assert not waiting.late
    first = sent[0]
    assert first is not None
    fleet.now_ns = 15 * MS
    first[1].read(1, fleet.now_ns)
    assert reported == [1]
    first[1].end(whole=True)
    first[1].end(whole=True)
    fleet.backends.end(fleet.backends.get("a"), 10)
    assert fleet.send(waiting) is not None


def test_a_backend_without_requests_of_its_tier_joins_another() -> None:
    """Eight of 50 ms take 26 ms an iteration: too long for the tier that it was of."""
    fleet = Fleet("a")
    sent = fleet.send(fleet.request(20))
    assert sent is not None
    sent[1].end(whole=False)
    fleet.backends.end(fleet.backends.get("a"), 10)
    assert fleet.names_of(*(fleet.request(50) for _ in range(8))) == ["a"] * 8


def test_a_request_that_no_idle_backend_could_make_is_best_effort_behind_all_others() -> None:
    fleet = Fleet("a")
    fleet.names_of(fleet.request(20))
    late = fleet.request(20, prompt=900, ttft_ms=5)
    assert fleet.send(late, others_wait=True) is None
    assert late.late


@pytest.mark.parametrize(("tpot_ms", "ttft_ms"), [(None, None), (None, 500), (20, None)])
def test_a_class_without_both_promises_is_best_effort(tpot_ms: int | None, ttft_ms: int | None) -> None:
    fleet = Fleet("a")
    request = fleet.request(tpot_ms, ttft_ms=ttft_ms)
    assert request.late
    assert fleet.send(request) is not None, "an empty backend takes it"


@pytest.mark.parametrize(("tpot_ms", "tier"), [(10, 0), (20, 0), (49, 0), (50, 1), (900, 1)])
def test_a_time_that_is_no_tier_counts_as_the_next_tighter_one(tpot_ms: int, tier: int) -> None:
    assert Fleet().request(tpot_ms).tier == tier


def test_closed_backends_get_none() -> None:
    fleet = Fleet()
    fleet.backends.drain("a")
    assert fleet.names_of(*(fleet.request(20) for _ in range(3))) == ["b", "b", "b"]
    fleet.backends.drain("b")
    assert fleet.names_of(fleet.request(20)) == [None]
    late = fleet.request(None, ttft_ms=None)
    assert fleet.names_of(late) == [None]


def test_what_is_missing_is_said() -> None:
    bare = Backends([Backend("a", "http://a")], lambda: 0.0)
    with pytest.raises(ValueError, match="a has no profile"):
        PolyServePlacer(bare, [MS], lambda: 0)
    whole = Backends([Backend("a", "http://a", profile=PROFILE)], lambda: 0.0)
    with pytest.raises(ValueError, match="no class promises a time a token"):
        PolyServePlacer(whole, [], lambda: 0)
