"""One request as it was received, and the facts of its streams by its request span and segments together.

The live evaluator and the audit share this module, so that a stream means the same to both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_llm import semconv
from otel_llm.formats.assemble.received_stream import ReceivedStream
from otel_llm.formats.assemble.resolved import Ending, Resolved
from otel_llm.formats.foreign.foreign_spans import read_foreign
from otel_llm.formats.spans.attributes import count_of, model_of, stated_columns, stated_total_of, text_of
from otel_llm.formats.spans.finish_reasons import finish_reason_of

if TYPE_CHECKING:
    from otel_llm.formats.records import Attributes, RequestKey, RequestSpan


@dataclass(slots=True)
class ReceivedRequest:
    """One request as received: its request span and its streams by choice."""

    trace_id: bytes
    span_id: bytes
    tenant: str
    request: RequestSpan | None = None
    streams: dict[int, ReceivedStream] = field(default_factory=dict)
    since_ns: int | None = None
    """The first receipt, unix ns; set by the live evaluator."""

    @property
    def key(self) -> RequestKey:
        """Return the identity of the request."""
        return (self.trace_id, self.span_id, self.tenant)

    def stream(self, choice: int) -> ReceivedStream:
        """Return the stream of one choice, a new one if nothing of it was received yet."""
        found = self.streams.get(choice)
        if found is None:
            found = self.streams[choice] = ReceivedStream()
        return found

    def as_now(self) -> ReceivedRequest:
        """Return the request with what was received until now; its streams are shared."""
        return ReceivedRequest(self.trace_id, self.span_id, self.tenant, self.request, dict(self.streams))

    def add_request(self, span: RequestSpan) -> bool:
        """Keep the first request span; return whether it was new."""
        if self.request is not None:
            return False
        self.request = span
        return True

    def request_ends(self, choice: int) -> bool:
        """Return whether the request span states this stream's end: it has an outcome, and no other choice was seen."""
        return self.request is not None and semconv.OUTCOME in self.request.attributes and self._is_only(choice)

    def _is_only(self, choice: int) -> bool:
        """Return whether no other choice was seen: the request span's outcome is then this stream's."""
        return not self.streams or (len(self.streams) == 1 and choice in self.streams)

    def ending(self, choice: int) -> Ending:
        """Return how one stream ended; the last segment's statements win over the request span's."""
        stream = self.streams.get(choice) or ReceivedStream()
        span = self.request
        stated: Attributes = span.attributes if span is not None else {}
        last = stream.last()
        # Statements on the end: the last segment's, else the request span's if it can mean this stream alone.
        own: Attributes = {} if last is None else last.segment.attributes
        is_only = self._is_only(choice)
        shared = stated if (last is not None and is_only) or self.request_ends(choice) else own
        outcome = text_of(own if semconv.OUTCOME in own else shared, semconv.OUTCOME) or "lost"
        declared = count_of(own if semconv.TOKENS in own else shared, semconv.TOKENS)
        token_basis = text_of(own if semconv.TOKEN_BASIS in own else shared, semconv.TOKEN_BASIS)

        commit_ns = stream.commit_ns()
        if commit_ns is None and span is not None:
            commit_ns = span.start_ns
        if last is not None:
            end_ns: int | None = last.segment.end_ns
        elif outcome != "lost" and span is not None:
            end_ns = span.end_ns
        else:
            end_ns = stream.seen_until_ns()

        covered, expected, known_tokens, known_until_ns = stream.extent()
        if declared is not None and declared > expected:
            expected = declared
        if not stream.count() and declared is None:
            coverage: float | None = (
                0.0  # segments were sent, none was received, and no count says that they were empty
            )
        else:
            coverage = min(1.0, covered / expected) if expected else 1.0
        whole = coverage == 1.0
        output_tokens, reasoning_tokens = None, None
        if is_only and not _has_choices(stream.stating(semconv.GEN_AI_REQUEST_CHOICE_COUNT, stated)):
            # Both from one place: the last segment if it states the total, else the request span.
            output_tokens, reasoning_tokens = stated_total_of(own)
            if output_tokens is None:
                output_tokens, reasoning_tokens = stated_total_of(stated)
        if outcome == "lost" and whole:
            coverage = None
        return Ending(
            outcome=outcome,
            # A last segment has the reason of its choice; a request span has one for each, NO_REASON if it has none.
            finish_reason=finish_reason_of(stated, choice) if last is None else finish_reason_of(own),
            token_basis=token_basis,
            commit_ns=commit_ns,
            end_ns=end_ns,
            coverage=coverage,
            complete=whole and commit_ns is not None,
            known_tokens=known_tokens,
            known_until_ns=known_until_ns,
            output_tokens=output_tokens,
            reasoning_tokens=reasoning_tokens,
        )

    def resolve(self, choice: int) -> Resolved:
        """Return the facts of one stream: segments win over the request span, attribute by attribute."""
        stream, span = self.streams.get(choice) or ReceivedStream(), self.request
        attributes: Attributes = dict(span.attributes) if span is not None else {}
        stream.overlay(attributes)
        return Resolved(
            **self.ending(choice).fields(),
            trace_id=self.trace_id,
            span_id=self.span_id,
            tenant=self.tenant,
            choice=choice,
            declared_class=text_of(attributes, semconv.SLO_CLASS),
            attributes=attributes,
            model=model_of(attributes),
            instance=text_of(attributes, semconv.INSTANCE),
            measured_at=text_of(attributes, semconv.MEASURED_AT) or place_of(span),
            input_tokens=count_of(attributes, semconv.GEN_AI_USAGE_INPUT_TOKENS),
            exact_resume=attributes.get(semconv.EXACT_RESUME) is True,
            offset_ns=_offset(span) if stream.offset_ns is None else stream.offset_ns,
            **stated_columns(attributes),
        )

    def resolve_foreign(self) -> Resolved | None:
        """Return the facts of another instrumentation's request span, None if it gives no time."""
        span = self.request
        if span is None:
            return None
        found = read_foreign(span)
        if found is None:
            return None
        attributes = span.attributes
        output_tokens, reasoning_tokens = (None, None) if _has_choices(attributes) else stated_total_of(attributes)
        return Resolved(
            trace_id=self.trace_id,
            span_id=self.span_id,
            tenant=self.tenant,
            choice=None,
            declared_class=text_of(attributes, semconv.SLO_CLASS),
            attributes=attributes,
            model=model_of(attributes),
            instance=text_of(attributes, semconv.INSTANCE),
            measured_at=found.measured_at,
            outcome="error" if span.error else "completed",
            finish_reason=finish_reason_of(attributes),
            token_basis=found.token_basis,
            commit_ns=span.start_ns,
            end_ns=span.end_ns,
            coverage=found.coverage,
            complete=found.complete,
            known_tokens=found.tokens if found.complete else 0,  # of an incomplete list the first may be missing
            known_until_ns=span.end_ns if found.complete else None,
            input_tokens=count_of(attributes, semconv.GEN_AI_USAGE_INPUT_TOKENS),
            output_tokens=output_tokens,
            reasoning_tokens=reasoning_tokens,
            offset_ns=_offset(span) if found.tokens else None,
            **stated_columns(attributes),
            foreign=found,
        )


def ending_overrides(ending: Attributes, span: Attributes) -> bool:
    """Tell whether a last segment states all that the request span does of the end: the span is not needed then."""
    return all(
        read(ending, key) is not None or read(span, key) is None
        for key, read in ((semconv.OUTCOME, text_of), (semconv.TOKENS, count_of), (semconv.TOKEN_BASIS, text_of))
    ) and (stated_total_of(ending)[0] is not None or stated_total_of(span)[0] is None)


def _has_choices(attributes: Attributes) -> bool:
    """Return whether a request asked for several replies."""
    return (count_of(attributes, semconv.GEN_AI_REQUEST_CHOICE_COUNT) or 1) > 1


def _offset(span: RequestSpan | None) -> int | None:
    return None if span is None or span.receipt_ns is None else span.end_ns - span.receipt_ns


def place_of(span: RequestSpan | None) -> str:
    """Return the place of measurement of a request that does not state it, by the kind of its span."""
    return "server" if span is not None and span.kind == 2 else "client"  # SpanKind SERVER
