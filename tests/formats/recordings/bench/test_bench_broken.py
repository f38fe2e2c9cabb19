"""Whatever a result file holds, it gives rows, counts or one typed error: never another exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.formats.bench_files import NS, WRITERS, Chunk, Requested
from support.formats.bench_read import judged, read, recognised

from otel_llm.formats.records import InputError

REQUESTED = [Requested(NS, (Chunk(3, 2), Chunk(9), Chunk(11))), Requested(2 * NS, (Chunk(5),))]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, -(2**62), 10**400, 1e308, -1.5, 0, "", "x", "[DONE]", '{"choices": 3}', "{", "\ud800"]),
    st.lists(st.one_of(st.integers(), st.none(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.sampled_from(["value", "model", "perf_ns", "packets", "text"]), st.integers(), max_size=2),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of everything in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, member in inner for place in places(member, (*path, key)))]


def spoilt(data: bytes, draw: st.DataObject) -> bytes:
    """Put junk in the place of one thing in the first line of a file, or leave it out."""
    whole = json.loads(data.partition(b"\n")[0] if data[:1] == b"{" and b"\n" in data else data)
    place = draw.draw(st.sampled_from(places(whole)[1:]))
    at = whole
    for key in place[:-1]:
        at = at[key]
    if draw.draw(st.booleans()):
        at[place[-1]] = draw.draw(JUNK)
    else:
        del at[place[-1]]
    return json.dumps(whole).encode()


@pytest.mark.parametrize("file_format", sorted(WRITERS))
@given(draw=st.data())
@settings(max_examples=examples(40))
def test_junk_in_any_place_costs_at_most_the_file(file_format: str, draw: st.DataObject) -> None:
    data = spoilt(WRITERS[file_format](REQUESTED), draw)
    if recognised(data) is None:
        return
    try:
        streams, _ = read(data)
    except InputError as error:
        refusal = str(error)
    else:
        assert all(-(2**62) <= time_ns <= 2**62 for one in streams for time_ns in one.events.expanded()[0])
        judged(streams)
        return
    assert refusal.startswith("result.json: ")


@pytest.mark.parametrize("file_format", sorted(WRITERS))
@given(draw=st.data())
@settings(max_examples=examples(40))
def test_a_file_cut_or_changed_anywhere_is_read_as_far_as_it_goes(file_format: str, draw: st.DataObject) -> None:
    data = bytearray(WRITERS[file_format](REQUESTED))
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    cut = bytes(data[: draw.draw(st.integers(1, len(data)))])
    if recognised(cut) is None:
        return
    try:
        streams, skipped = read(cut)
    except InputError:
        return
    judged(streams)
    assert len(streams) <= len(REQUESTED) or skipped.counts


@pytest.mark.parametrize(
    ("file_format", "first", "gaps"),
    [("vllm", "ttfts", "itls"), ("sglang", "ttfts", "itls"), ("etalon", "ttft", "tbt")],
)
@pytest.mark.parametrize("junk", [5, True, {}, "x"])
def test_gaps_that_are_no_list_cost_their_request_where_nothing_came_first(
    file_format: str, first: str, gaps: str, junk: Any
) -> None:
    whole = json.loads(WRITERS[file_format](REQUESTED))
    whole[first][0], whole[gaps][0] = 0.0, junk
    streams, skipped = read(json.dumps(whole).encode())
    assert (len(streams), skipped.counts) == (len(REQUESTED) - 1, {"bad_record": 1})
