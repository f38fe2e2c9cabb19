"""The verdict on a stream that has ended: by its recorded tokens, or resampled to the total that the reply stated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from otel_llm import semconv
from otel_llm.formats.spans.attributes import text_of
from otel_llm.slo.stated_total import RESAMPLED, StatedReply, restated_events
from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from otel_llm.formats.assemble.resolved import Resolved
    from otel_llm.slo.verdict import Verdict


def stated_reply(resolved: Resolved, verdict: Verdict, recorded: int, learned: bool | None) -> StatedReply | None:
    """Return how many tokens were recorded of a reply that was judged by its stated length; None for any other.

    `learned`: as `token_ratio_learned` of a stream.
    """
    stated = resolved.stated
    if not stated.may_apply or not recorded or not verdict.tokens:
        return None
    if verdict.tokens == recorded and recorded not in (
        stated.output_tokens,
        (stated.output_tokens or 0) - (stated.reasoning_tokens or 0),
    ):
        return None  # it states what cannot be: the recorded tokens stand
    named = resolved.attributes
    provider = text_of(named, semconv.GEN_AI_PROVIDER_NAME) or text_of(named, semconv.GEN_AI_SYSTEM) or ""
    return StatedReply(resolved.model or "", provider, recorded, verdict.tokens, learned is True, resolved.tenant)


def final_verdict(stream: Stream, resolved: Resolved, end_ns: int) -> tuple[Verdict, Resolved]:
    """Return the verdict on a complete stream, and its facts with the basis of the tokens that were judged."""
    events = restated_events(stream.events, stream.commit_ns, resolved.stated)
    if events is None:
        return stream.finish(end_ns, resolved.outcome), resolved
    judged = Stream(stream.slo, stream.commit_ns, stream.input_tokens)
    judged.extend(*events)
    judged.skewed = stream.skewed
    return judged.finish(end_ns, resolved.outcome), replace(resolved, token_basis=RESAMPLED)
