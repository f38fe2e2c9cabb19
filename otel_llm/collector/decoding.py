"""Decode an export request into the messages that are written to the journal and evaluated: several of a large one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from otel_llm.readers.otlp import export_request as otlp
from otel_llm.readers.otlp.cutting import cut_export
from otel_llm.readers.otlp.length_delimited import refuse_many_parts
from otel_llm.shared.memory import KEEPER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.readers.batch import Batch
    from otel_llm.readers.spans.attributes import AttributeLimits

READ_APART_BYTES = 2**18
"""Larger requests are decoded in another thread, so that the evaluator's thread goes on."""
PART_BYTES = 2**17
"""Large requests are cut into parts of about so many bytes, each a record of the journal; others take turns between."""
SMALL_PART_BYTES = 2**14
"""The part size for a sender that has used much CPU time while other senders wait."""


def decode(raw: bytes, limits: AttributeLimits, part_bytes: int | None = None) -> deque[tuple[bytes, Batch]]:
    """Return the messages of an export request, each with its records.

    `part_bytes`: cut it into messages of about so many bytes; None: leave it whole.

    Raises:
        DecodeError: it is no export request, or has more small parts than its size allows.
    """
    KEEPER.note(len(raw))
    raws: Sequence[bytes] = (raw,)
    if part_bytes is not None:
        refuse_many_parts(raw)  # before they are looked at one by one
        raws = cut_export(raw, part_bytes)
    parts: deque[tuple[bytes, Batch]] = deque()
    for part, batch in zip(
        raws, otlp.read_all(raws, limits=limits, max_tokens=otlp.token_budget(len(raw))), strict=True
    ):
        if isinstance(batch, Exception):
            raise batch
        parts.append((part, batch))
    return parts
