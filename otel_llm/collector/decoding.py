"""Decoding of export requests into parts: each is a record of the journal, and is evaluated alone.

A small request is one part. A large one is cut, so that exports of other senders have turns between its parts.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_llm.formats.otlp import export_request as otlp
from otel_llm.formats.otlp.cutting import cut_export
from otel_llm.formats.otlp.length_delimited import refuse_many_parts
from otel_llm.shared.memory import HEAP_TRIMMER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.collector.inbox import Export, Inbox
    from otel_llm.formats.batch import Batch
    from otel_llm.formats.spans.attributes import AttributeLimits

BACKGROUND_DECODE_BYTES = 2**18
"""A larger request is decoded in another thread, so that the evaluator's thread continues."""
PART_BYTES = 2**17
"""The size of a part of a large request, about."""
SMALL_PART_BYTES = 2**14
"""The same, for a sender that has used much CPU time while other senders wait."""


@dataclass(frozen=True, slots=True)
class PartSizes:
    """Sizes of requests and of their parts (bytes); see the constants."""

    background: int = BACKGROUND_DECODE_BYTES
    part: int = PART_BYTES
    small_part: int = SMALL_PART_BYTES


class Decoder:
    """Decodes exports of an inbox and charges their senders; `decode` is for the evaluator's thread.

    Args:
        inbox: where an export that is decoded in the background returns to.
        limits: of attributes.
        on_refused: called, in the background's thread, with an export that could not be decoded there.
        sizes: from which on a request is decoded in the background, and of parts.
    """

    def __init__(
        self, inbox: Inbox, limits: AttributeLimits, on_refused: Callable[[Export], None], sizes: PartSizes
    ) -> None:
        self._inbox = inbox
        self._limits = limits
        self._on_refused = on_refused
        self._sizes = sizes
        self._background = ThreadPoolExecutor(1, "otel-llm-decode")

    def decode(self, export: Export) -> bool:
        """Decode an export that is not decoded yet, or refuse it; return False if the background does so later.

        The sender of an export in several parts is held, so that the exports of one sender stay in order.
        """
        size = len(export.raw)
        if export.parts is None and size > self._sizes.background:
            self._inbox.hold(export.sender)
            self._background.submit(self._decode_large, export)
            return False
        if export.parts is None:
            cut = size > self._sizes.small_part and self._inbox.is_heavy(export.sender)
            self._decode(export, self._sizes.small_part if cut else None)
        if export.parts is not None and len(export.parts) > 1:
            self._inbox.hold(export.sender)
        return True

    def wait(self) -> None:
        """Wait until no export is being decoded in the background."""
        self._background.submit(bool).result()

    def close(self) -> None:
        """Wait for the background, and end its thread."""
        self._background.shutdown()

    def _decode_large(self, export: Export) -> None:
        self._decode(export, self._sizes.part)
        if export.parts is None:
            self._on_refused(export)
            self._inbox.put_back(export.sender, None)
        else:
            self._inbox.put_back(export.sender, export)

    def _decode(self, export: Export, part_bytes: int | None) -> None:
        began_s = time.thread_time()
        try:
            export.parts = decode(export.raw, self._limits, part_bytes)
        except Exception as error:  # noqa: BLE001  it is the answer to the sender
            export.refuse(error)
        self._inbox.charge(export.sender, time.thread_time() - began_s)


def decode(raw: bytes, limits: AttributeLimits, part_bytes: int | None = None) -> deque[tuple[bytes, Batch]]:
    """Return the parts of an export request, each with its records.

    `part_bytes`: the size of a part, about; None: leave the request whole.

    Raises:
        DecodeError: it is no export request, or has more small fields than its size allows.
    """
    HEAP_TRIMMER.note_large(len(raw))
    raws: Sequence[bytes] = (raw,)
    if part_bytes is not None:
        refuse_many_parts(raw)  # the whole request has one allowance: read alone, each part would have its own
        raws = cut_export(raw, part_bytes)
    parts: deque[tuple[bytes, Batch]] = deque()
    for part, batch in zip(
        raws, otlp.read_all(raws, limits=limits, max_tokens=otlp.token_budget(len(raw))), strict=True
    ):
        if isinstance(batch, Exception):
            raise batch
        parts.append((part, batch))
    return parts
