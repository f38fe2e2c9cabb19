"""The verdict on a stream that has ended: by its recorded tokens, or resampled to the total that the reply stated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from otel_llm.slo.stated_total import RESAMPLED, restated
from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from otel_llm.readers.assemble.resolved import Resolved
    from otel_llm.slo.verdict import Verdict


def final_verdict(stream: Stream, resolved: Resolved, end_ns: int) -> tuple[Verdict, Resolved]:
    """Return the verdict on a complete stream, and its facts with the basis of the tokens that were judged."""
    tokens = restated(stream.times_ns, stream.kinds, stream.commit_ns, resolved.stated)
    if tokens is None:
        return stream.finish(end_ns, resolved.outcome), resolved
    times_ns, kinds = tokens
    judged = Stream(stream.slo, stream.commit_ns, stream.input_tokens)
    judged.extend(times_ns.tolist(), kinds)
    judged.skewed = stream.skewed
    return judged.finish(end_ns, resolved.outcome), replace(resolved, token_basis=RESAMPLED)
