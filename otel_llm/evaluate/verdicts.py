"""Verdicts of streams: windows and counters are charged, the sink gets row and verdict."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from otel_llm import semconv
from otel_llm.evaluate.streams.final_verdict import EndedStream, final_verdict, judged_row, stated_reply
from otel_llm.evaluate.streams.lifecycle import StreamEvent
from otel_llm.evaluate.streams.stream_in_flight import group_of
from otel_llm.formats.assemble.received_stream import ReceivedStream, missing_segments
from otel_llm.formats.foreign.foreign_spans import foreign_tokens
from otel_llm.formats.rows import Row, unjudged_row
from otel_llm.slo.ledger import Ledger
from otel_llm.slo.token_events import NO_EVENTS, TokenEvents

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from otel_llm.evaluate.group_facts import Groups
    from otel_llm.evaluate.registry import Registry
    from otel_llm.evaluate.sink import Sink
    from otel_llm.evaluate.streams.live_stream import LiveStream
    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.evaluate.timers import Timers
    from otel_llm.evaluate.usage import Meter
    from otel_llm.evaluate.windowing import Windowing
    from otel_llm.formats.assemble.received_request import ReceivedRequest
    from otel_llm.formats.assemble.resolved import Ending, Resolved
    from otel_llm.formats.records import RequestKey
    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.verdict import Verdict


class ForeignReply(NamedTuple):
    """The facts and the token events of another instrumentation's span."""

    resolved: Resolved
    tokens: TokenEvents

    def facts(self) -> Resolved:
        """Return the facts."""
        return self.resolved


class Verdicts:
    """The judge of streams, and of request spans without segments.

    `groups`: the facts of instances and classes. `counts` gets judged, lost,
    partial (without segment 0), skewed_tokens, missing_empty_segments, ignored_spans.
    """

    def __init__(
        self,
        registry: Registry,
        table: StreamTable,
        meter: Meter,
        windowing: Windowing,
        sink: Sink[LiveStream],
        timers: Timers,
        counts: Counter[str],
        groups: Groups,
    ) -> None:
        self._registry = registry
        self._table = table
        self._meter = meter
        self._windowing = windowing
        self._sink = sink
        self._timers = timers
        self._counts = counts
        self._groups = groups

    def judge(
        self,
        streams: Sequence[LiveStream],
        event: StreamEvent = StreamEvent.VERDICT,
        foreign: ForeignReply | None = None,
    ) -> None:
        """Judge streams, at least one, by their received parts, and remove them.

        `event`: VERDICT, or SILENCE for streams without an end. `foreign`: what another instrumentation's span says of
        the only stream.
        """
        taken: list[LiveStream] = []
        ended: list[EndedStream[LiveStream]] = []
        try:
            for stream in streams:
                self._registry.drop(stream)  # first: an error below then occurs once
                taken.append(stream)
                stream.move(event)
                ended.append(self._judged(stream, foreign))
        finally:
            try:
                if ended:  # none after an error in the first
                    self._report(ended)
            finally:
                for stream in taken:
                    self._table.release(stream.slot, stream.table_key, stream.parts.tenant)

    def judge_ended(self) -> None:
        """Judge every stream whose end was received, and every request span, without further waiting."""
        if ended := list(self._registry.ended.values()):
            self.judge(ended)
        for key in list(self._registry.orphans):
            self.judge_orphan(key)

    def judge_before(self, boundary_ns: int) -> None:
        """Judge streams and request spans that ended before `boundary_ns`, the end of a window that closes."""
        due = []
        for stream in self._registry.ended.values():
            assert stream.ended_ns is not None  # noqa: S101
            last_ns = max(stream.ended_ns, stream.stream.last_ns) if stream.begun else stream.ended_ns
            if last_ns < boundary_ns + stream.shift_ns:
                due.append(stream)
        if due:
            self.judge(due)
        for key in [key for key, end_ns in self._registry.orphans.items() if end_ns < boundary_ns]:
            self.judge_orphan(key)

    def judge_orphan(self, key: RequestKey) -> None:
        """Judge a request span whose segments did not arrive, or that another instrumentation wrote."""
        parts = self._registry.pop_orphan(key)
        if parts is None:
            return
        assert parts.request is not None  # noqa: S101
        ours = semconv.SEGMENTS in parts.request.attributes
        resolved = parts.resolve(0) if ours else parts.resolve_foreign()
        if resolved is None:
            self._counts["ignored_spans"] += 1
        tokens = None if ours else foreign_tokens(parts.request)
        if resolved is not None and (ours or tokens is not None):
            self._judge_span(parts, resolved, tokens)
            return
        del self._registry.parts[key]
        self._registry.tombstones.add(key, 0)
        if resolved is not None:  # a row of its own; windows and smooth goodput need token times
            slo = self._registry.choose(resolved, count=True)
            self._sink.foreign_judged(unjudged_row(resolved, slo.name, NO_EVENTS, slo.reads))

    def _judge_span(self, parts: ReceivedRequest, resolved: Resolved, tokens: TokenEvents | None) -> None:
        slo = self._registry.choose(resolved, count=True)
        stream = self._registry.stream_of_span(parts, resolved, slo)
        self.judge([stream], foreign=None if tokens is None else ForeignReply(resolved, tokens))
        if tokens is not None and parts.request is not None:
            # This frees the memory of a judged request.
            parts.request.events_ns, parts.request.kinds, parts.request.counts = [], None, None

    def _judged(self, stream: LiveStream, foreign: ForeignReply | None) -> EndedStream[LiveStream]:
        """Judge one stream."""
        received, parts = stream.received, stream.parts
        ending: Ending = parts.ending(stream.choice) if foreign is None else foreign.resolved
        resolved = partial(parts.as_now().resolve, stream.choice) if foreign is None else foreign.facts
        stream.outcome = ending.outcome
        if foreign is not None or not self._registry.is_identified(stream):
            facts = resolved()
            self._reidentify(stream, facts, self._registry.choose(facts))
        if foreign is not None and ending.complete:
            stream.stream.extend(*foreign.tokens)
        verdict: Verdict | None = None
        row: Callable[[], Row]
        if ending.complete and stream.begun and ending.end_ns is not None:
            verdict, basis = final_verdict(stream.stream, ending, ending.end_ns)
            if verdict.skewed:
                self._counts["skewed_tokens"] += verdict.skewed
            if missing := missing_segments(received):
                self._counts["missing_empty_segments"] += missing
            row = partial(judged_row, resolved, basis, stream.slo.name, verdict, stream.stream.tokens)
        else:
            events = stream.token_events() if foreign is None else foreign.tokens
            # Computed now, so that a sink that stores it does not keep the token times alive.
            row = partial(dict, unjudged_row(resolved(), stream.slo.name, events, stream.slo.reads))
        if foreign is None and not received.has(0):
            self._counts["partial"] += 1
        parts.streams[stream.choice] = ReceivedStream()  # frees the memory of a judged stream
        return EndedStream(stream, ending, verdict, resolved, row)

    def _report(self, ended: Sequence[EndedStream[LiveStream]]) -> None:
        """Charge and count streams, and pass their verdicts on."""
        for one in ended:
            if one.ending.stated.may_apply and one.verdict is not None:
                reply = stated_reply(one, one.stream.stream.tokens, one.stream.token_ratio_learned)
                if reply is not None:
                    self._sink.reply_stated(reply)
        self._windowing.ended(ended)
        self._groups.ended(ended, self._timers.now_ns)
        self._counts["judged"] += len(ended)
        if lost := sum(one.ending.outcome == "lost" for one in ended):
            self._counts["lost"] += lost
        for metered in self._meter.close([(one.stream, one.verdict) for one in ended]):
            self._sink.charged(metered)
        self._sink.streams_judged(ended)

    def _reidentify(self, stream: LiveStream, resolved: Resolved, slo: SloClass) -> None:
        """Update the identity of a stream that the request span or a late segment 0 has changed."""
        old, group = stream.stream if stream.begun else None, stream.group
        stream_is = group_of(resolved, slo)
        same_class = old is None or old.slo is slo or old.slo == slo
        if old is not None and (stream_is != group or not same_class):
            # Charges under the old identity are refunded, and made again under the new one.
            if stream.windows is not None:
                self._windowing.refund(stream, stream.windows.close(None))
            for metered in self._meter.close([(stream, None)]):
                self._sink.charged(metered)
            self._groups.close([(stream, None)])
            stream.identify(slo, stream_is, exact_resume=resolved.exact_resume)
            self._windowing.move_start(stream, group)
            stream.windows = Ledger(slo, old.commit_ns)
        elif stream.slo is not slo or stream_is != group or stream.exact_resume != resolved.exact_resume:
            stream.identify(slo, stream_is, exact_resume=resolved.exact_resume)
        if resolved.commit_ns is None:
            return
        if old is None:
            stream.commit(resolved.commit_ns, resolved.input_tokens)
            stream.apply()
            self._windowing.started(stream)
        elif old.commit_ns != resolved.commit_ns:
            self._move_commit(stream, resolved.commit_ns, resolved.input_tokens)
        elif not same_class:
            # The ledgers know the charges: their last charge balances them.
            stream.begin(resolved.commit_ns, resolved.input_tokens)
        elif resolved.input_tokens is not None:
            old.know_input_tokens(resolved.input_tokens)  # often only the request span says it

    def _move_commit(self, stream: LiveStream, commit_ns: int, input_tokens: int | None) -> None:
        """Move the commit of a stream from its request's to its own, and drop charges from before it."""
        if stream.windows is not None:
            self._windowing.refund(stream, stream.windows.close(None))
            stream.windows = Ledger(stream.slo, commit_ns)
            self._table.charged_ns[stream.slot] = 0  # the refund is charged again
        counted = self._windowing.uncount_start(stream)
        stream.begin(commit_ns, input_tokens)
        if counted:
            self._windowing.started(stream)
