"""Put the rows of pending requests together to streams: those without a hole all at once, the others one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_llm import semconv
from otel_llm.formats.assemble.assembler import streams_of
from otel_llm.formats.assemble.received_request import ReceivedRequest
from otel_llm.formats.assemble.received_stream import Prefix, ReceivedSegment, ReceivedStream
from otel_llm.formats.assemble.stream_columns import Streams, sort_times
from otel_llm.formats.assemble.stream_rows import NO_RECEIPT, OWN_KINDS, Rows, gather, joined
from otel_llm.formats.records import Segment
from otel_llm.slo.token_events import joined as together

if TYPE_CHECKING:
    from collections import Counter

    from otel_llm.formats.assemble.pending_requests import PendingRequest
    from otel_llm.formats.assemble.resolved import Assembled, Resolved
    from otel_llm.formats.assemble.stream_rows import Bools, Ints, Merged
    from otel_llm.formats.records import Attributes
    from otel_llm.slo.token_events import TokenEvents


def with_others(plain: Rows | None, requests: list[PendingRequest]) -> tuple[Rows | None, dict[int, bytes]]:
    """Return the rows of requests together with the segments that were read one by one, and the kinds of these.

    The kinds are by index of the row. Segments read one by one come first: of two with one number in one export request
    they are kept.
    """
    cells: list[tuple[int, int, int, int, int, int, int, int, int]] = []
    events: list[TokenEvents] = []
    own_kinds: dict[int, bytes] = {}
    for one in requests:
        if one.choices:
            continue
        for order, segment in one.segments:
            if segment.kinds is not None:
                own_kinds[len(cells)] = segment.kinds
            cells.append(
                (
                    one.slot,
                    segment.seq,
                    segment.first_token,
                    segment.end_ns,
                    0 if segment.kinds is None else OWN_KINDS,
                    order,
                    NO_RECEIPT if segment.receipt_ns is None else segment.receipt_ns,
                    len(segment.times_ns),
                    segment.tokens,
                )
            )
            events.append(segment.events)
    if not cells:
        return plain, own_kinds
    slot, seq, first, end, kind, order, receipt, lengths, tokens = np.array(cells, np.int64).T
    times_ns, _, counts = together(events)
    times = np.array(times_ns, np.int64)
    per_event = np.ones(len(times), np.int64) if counts is None else np.array(counts, np.int64)
    others = Rows(slot, seq, first, end, kind.astype(np.uint8), order, receipt, lengths, tokens, times, per_event)
    return others if plain is None else joined([others, plain]), own_kinds


def _resolve(
    one: PendingRequest, segments: int, tokens: int, end_ns: int, inner_end_ns: int, offset_ns: int | None
) -> Resolved:
    """Return the facts of a stream whose segments are all there from 0 on: those before the last one as a prefix.

    `segments`, `tokens`: their numbers; `end_ns`: the latest end of one, `inner_end_ns`: of one but the last.
    """
    last: Segment | None = None
    described: dict[int, Segment] = {}
    for _, segment in one.segments:
        if semconv.OUTCOME in segment.attributes:
            last = last or segment
        elif segment.attributes or not segment.seq:
            described.setdefault(segment.seq, segment)
    stream = ReceivedStream(offset_ns=offset_ns)
    if last is not None:
        stream.held[last.seq] = ReceivedSegment(last, last.tokens)
        stream.ending = last.seq
        segments, tokens, end_ns = segments - 1, tokens - last.tokens, inner_end_ns
    if segments:
        attributes: Attributes = {}
        for seq in sorted(described, reverse=True):
            attributes.update(described[seq].attributes)
        stream.prefix = Prefix(segments, tokens, described[0].start_ns, end_ns, attributes)
    return ReceivedRequest(*one.request_key, one.request, {0: stream}).resolve(0)


def repetitions_differ(requests: list[PendingRequest], rows: Rows, stream: Ints, merged: Merged) -> Bools:
    """Return where (C,) a repetition of a segment has other attributes than the segment received first.

    It changes nothing, but rows have no attributes: such a stream is assembled one by one. `rows`, `stream` as for
    `merge`, of `with_others`: segments read one by one come first.
    """
    found = np.zeros(len(requests), np.bool_)
    if not merged.repeated.any():
        return found  # nearly always
    others = [segment for one in requests if not one.choices for _, segment in one.segments]
    repeated = np.ones(len(others), np.bool_)
    repeated[merged.rows[merged.rows < len(others)]] = False
    for position in np.flatnonzero(repeated).tolist():
        of = int(stream[position])
        own = merged.rows[merged.bounds[of] : merged.bounds[of + 1]]
        first = int(own[rows.seq[own] == rows.seq[position]][0])
        came = others[first].attributes if first < len(others) else {}
        found[of] |= others[position].attributes != came
    return found


def regular_streams(
    requests: list[PendingRequest], rows: Rows, own_kinds: dict[int, bytes], merged: Merged, chosen: Bools
) -> Streams:
    """Return the streams that are `chosen` (C,); they have no hole."""
    lengths = np.diff(merged.bounds)
    taken = merged.rows[np.repeat(chosen, lengths)]
    starts = np.cumsum(rows.events) - rows.events
    times, counts = (gather(one, starts[taken], rows.events[taken]) for one in (rows.times_ns, rows.counts))
    events = np.add.reduceat(rows.events[merged.rows], merged.bounds[:-1])
    offsets = np.concatenate(([0], np.cumsum(events[chosen])))
    one_each = int(merged.tokens[chosen].sum()) == len(times)
    kinded = np.logical_or.reduceat(rows.kind[merged.rows] != 0, merged.bounds[:-1])
    resolved: list[Resolved] = []
    kinds: list[bytes | None] = []
    columns = zip(
        requests,
        chosen.tolist(),
        lengths.tolist(),
        merged.tokens.tolist(),
        merged.end_ns.tolist(),
        merged.inner_end_ns.tolist(),
        merged.offset_ns.tolist(),
        merged.has_offset.tolist(),
        strict=True,
    )
    for index, (one, mine, segments, count, end_ns, inner_ns, offset_ns, has_offset) in enumerate(columns):
        if mine:
            resolved.append(_resolve(one, segments, count, end_ns, inner_ns, offset_ns if has_offset else None))
            own = merged.rows[merged.bounds[index] : merged.bounds[index + 1]]
            kinds.append(_kinds(rows, own, own_kinds) if kinded[index] else None)
    found = Streams(resolved, times, offsets, kinds, None if one_each else counts)
    sort_times(found)
    return found


def one_by_one(requests: list[PendingRequest], plain: Rows | None, counts: Counter[str]) -> Streams:
    """Return the streams of requests with holes, choices or no segments, assembled as by `Assembler`."""
    plain_segments = {} if plain is None or not requests else _as_segments(plain, requests)
    found: list[Assembled] = []
    for one in requests:
        received = ReceivedRequest(*one.request_key, one.request)
        if one.earlier:
            received.stream(0)
        # In order of receipt; of one export request those read one by one first.
        for _, segment in sorted([*one.segments, *plain_segments.get(one.slot, ())], key=lambda pair: pair[0]):
            if (dropped := received.stream(segment.choice).add(segment)) is not None:
                counts[dropped] += 1
        found += [stream for stream in streams_of(received, counts) if stream.resolved.choice or not one.earlier]
    return Streams.of(found)


def _kinds(rows: Rows, positions: Ints, own: dict[int, bytes]) -> bytes:
    """Return the kind codes of the events of the rows at these indexes; `own`: those of rows with a kind a token."""
    return b"".join(
        bytes((int(rows.kind[position]),)) * int(rows.events[position]) if position not in own else own[position]
        for position in positions.tolist()
    )


def _as_segments(plain: Rows, requests: list[PendingRequest]) -> dict[int, list[tuple[int, Segment]]]:
    """Return the rows of requests as segments, by slot, each with the number of its export request."""
    found: dict[int, list[tuple[int, Segment]]] = {one.slot: [] for one in requests}
    keys = {one.slot: one.request_key for one in requests}
    rows = plain.only(np.isin(plain.slot, np.fromiter(found, np.int64, len(found))))
    stops = np.cumsum(rows.events).tolist()
    times, counts = rows.times_ns.tolist(), rows.counts.tolist()
    columns = (
        *(rows.slot, rows.seq, rows.first_token, rows.end_ns, rows.kind, rows.order, rows.receipt_ns),
        *(rows.events, rows.tokens),
    )
    for stop, (slot, seq, first, end_ns, kind, order, receipt_ns, events, tokens) in zip(
        stops, zip(*(column.tolist() for column in columns), strict=True), strict=True
    ):
        trace_id, span_id, tenant = keys[slot]
        segment = Segment(
            trace_id,
            span_id,
            0,
            seq,
            first,
            end_ns,  # its begin has no meaning
            end_ns,
            times[stop - events : stop],
            bytes((kind,)) * events if kind else None,
            {},
            None if receipt_ns == NO_RECEIPT else receipt_ns,
            tenant=tenant,
            counts=None if tokens == events else counts[stop - events : stop],
        )
        found[slot].append((order, segment))
    return found
