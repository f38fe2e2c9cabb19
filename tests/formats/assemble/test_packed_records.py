"""Records survive their way through bytes, in order and to the bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.formats.assemble.packed_records import pack, unpack
from otel_llm.formats.records import Attributes, RequestSpan, Segment

KEY = (bytes(range(16)), bytes(range(8)), "default")
NUMBERS = st.integers(1, 2**62)
MAYBE = st.none() | NUMBERS
SCALARS = st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans()
ATTRIBUTES: st.SearchStrategy[Attributes] = st.dictionaries(st.text(), SCALARS, max_size=3)


@st.composite
def tokens(draw: st.DrawFn) -> tuple[list[int], bytes | None]:
    times = draw(st.lists(NUMBERS, max_size=5))
    kinds = st.binary(min_size=len(times), max_size=len(times))
    return times, draw(st.none() | kinds)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    times, kinds = draw(tokens())
    return Segment(
        *KEY[:2],
        choice=draw(st.integers(0, 2**31)),
        seq=draw(st.integers(0, 2**31)),
        first_token=draw(st.integers(0, 2**31)),
        start_ns=draw(NUMBERS),
        end_ns=draw(NUMBERS),
        times_ns=times,
        kinds=kinds,
        attributes=draw(ATTRIBUTES),
        receipt_ns=draw(MAYBE),
        instance_id=draw(st.none() | st.text()),
    )


@st.composite
def requests(draw: st.DrawFn) -> RequestSpan:
    times, kinds = draw(tokens())
    return RequestSpan(
        *KEY[:2],
        parent_id=draw(st.binary(max_size=8)),
        name=draw(st.text()),
        kind=draw(st.integers(0, 5)),
        start_ns=draw(NUMBERS),
        end_ns=draw(NUMBERS),
        error=draw(st.booleans()),
        attributes=draw(ATTRIBUTES),
        events_ns=times,
        kinds=kinds,
        event_basis=draw(st.sampled_from([None, "chunk"])),
        dropped_events=draw(st.integers(0, 9)),
        receipt_ns=draw(MAYBE),
        instance_id=draw(st.none() | st.text()),
    )


def exact(records: list[Segment] | list[RequestSpan]) -> str:
    return repr(records)  # tells 1 from 1.0 and True


@given(st.lists(segments(), max_size=3), st.lists(requests(), max_size=2))
def test_records_come_back_as_they_were(segments: list[Segment], spans: list[RequestSpan]) -> None:
    frames = [pack(segment) for segment in segments] + [pack(span) for span in spans]
    batch = unpack(KEY, b"".join(frames))
    assert exact(batch.segments) == exact(segments)
    assert exact(batch.requests) == exact(spans)


@given(segments(), st.data())
def test_a_cut_frame_is_an_error_and_not_a_shorter_record(segment: Segment, data: st.DataObject) -> None:
    frame = pack(segment)
    cut = data.draw(st.integers(1, len(frame) - 1))
    with pytest.raises(ValueError, match="record"):
        unpack(KEY, frame[:cut])
