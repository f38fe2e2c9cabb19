"""The attributes of the request span at the end of its request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from otel_llm import semconv
from otel_llm.instrumentation.segments.outcomes import COMPLETED, FAILURES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.core.committed_request import Request
    from otel_llm.instrumentation.segments.choices import Choices


class Ending(NamedTuple):
    """The end of a request: attributes under `otel_llm.`, the others, and the status's description if it failed."""

    outcome: str
    ours: dict[str, AttributeValue]
    gen_ai: dict[str, AttributeValue]
    failure: str | None


def ending(
    request: Request, choices: Choices | None, outcome: str, error: str | None, said: Mapping[str, AttributeValue]
) -> Ending:
    """Return the end of a request with this `outcome`; `error` is an `error.type`, `said` the reply's own statements.

    If the server declared every choice complete, the request is completed, whatever followed. `choices` None: no
    segment was sent.
    """
    ours: dict[str, AttributeValue] = {semconv.OUTCOME: outcome}
    gen_ai = dict(said)
    if choices is not None:
        outcome = outcome if choices.failed else COMPLETED
        ours = {
            semconv.OUTCOME: outcome,
            semconv.TOKENS: choices.tokens,
            semconv.TOKEN_BASIS: choices.basis,
            semconv.SEGMENTS: choices.segments,
            **choices.first_times_s,
        }
        if choices.first_chunk_ns is not None and not request.server:
            waited_ns = choices.first_chunk_ns - request.commit_ns - request.offset_ns
            gen_ai[semconv.GEN_AI_TIME_TO_FIRST_CHUNK] = max(waited_ns, 0) / 1e9
    failure = (error or outcome) if outcome in FAILURES else None
    if failure is not None and error is not None:
        gen_ai[semconv.ERROR_TYPE] = error
    return Ending(outcome, ours, gen_ai, failure)
