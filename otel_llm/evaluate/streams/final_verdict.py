"""The verdict on a stream that has ended: by its recorded tokens, or resampled to the total that the reply stated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from otel_llm import semconv
from otel_llm.evaluate.streams.stream_in_flight import StreamInFlight
from otel_llm.formats.rows import verdict_row
from otel_llm.formats.spans.attributes import text_of
from otel_llm.slo.stated_total import RESAMPLED, StatedReply, restated
from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.formats.assemble.resolved import Ending, Resolved
    from otel_llm.formats.rows import Row
    from otel_llm.slo.verdict import Verdict


StreamT_co = TypeVar("StreamT_co", bound=StreamInFlight, covariant=True)


class EndedStream(NamedTuple, Generic[StreamT_co]):
    """A stream that has ended.

    `verdict`: None if it cannot be judged. `resolved` and `row` return all its facts, and its row.
    """

    stream: StreamT_co
    ending: Ending
    verdict: Verdict | None
    resolved: Callable[[], Resolved]
    row: Callable[[], Row]


def stated_reply(ended: EndedStream[StreamInFlight], recorded: int, learned: bool | None) -> StatedReply | None:
    """Return how many tokens were recorded of a reply that was judged by its stated length; None for any other.

    `learned`: as `token_ratio_learned` of a stream.
    """
    stated, verdict = ended.ending.stated, ended.verdict
    if not stated.may_apply or not recorded or verdict is None or not verdict.tokens:
        return None
    if verdict.tokens == recorded and recorded not in (
        stated.output_tokens,
        (stated.output_tokens or 0) - (stated.reasoning_tokens or 0),
    ):
        return None  # it states what cannot be: the recorded tokens stand
    resolved = ended.resolved()
    named = resolved.attributes
    provider = text_of(named, semconv.GEN_AI_PROVIDER_NAME) or text_of(named, semconv.GEN_AI_SYSTEM) or ""
    return StatedReply(resolved.model or "", provider, recorded, verdict.tokens, learned is True, resolved.tenant)


def final_verdict(stream: Stream, ending: Ending, end_ns: int) -> tuple[Verdict, str | None]:
    """Return the verdict on a complete stream, and the basis of the tokens that were judged."""
    stated = ending.stated
    found = restated(*stream.events, stream.commit_ns, stated)
    if found is None:
        return stream.finish(end_ns, ending.outcome), ending.token_basis
    judged = Stream(stream.slo, stream.commit_ns, stream.input_tokens)
    judged.extend(*found.events())
    judged.skewed = stream.skewed
    return judged.finish(end_ns, ending.outcome), RESAMPLED


def judged_row(
    resolved: Callable[[], Resolved], basis: str | None, class_name: str, verdict: Verdict, recorded: int
) -> Row:
    """Return the row of a stream that was judged by tokens of this basis; `recorded`: its recorded tokens."""
    return verdict_row(replace(resolved(), token_basis=basis), class_name, verdict, recorded)
