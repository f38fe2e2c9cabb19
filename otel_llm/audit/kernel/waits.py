"""Who waited: readers who waited longer than their class allows, and the two waits that every reader has apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from otel_llm.audit.kernel.judged_columns import column_of, texts_of
from otel_llm.shared.formatting import plural, seconds
from otel_llm.slo.classes import ABORTED
from otel_llm.slo.quantiles import P50, P99, rank

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_llm.audit.kernel.judged_columns import Rows

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of some requests.

    `judged`: requests with a judged reader; `beyond`: those of them whose deadline passed while the reader waited;
    `broken`: those that the server's side ended; `first_s`: the times to the first text, ascending; `between_s`: the
    waits after it (`idle_decode_s`) that are longer than 0, ascending.
    """

    judged: int
    beyond: int
    broken: int
    first_s: Floats
    between_s: Floats

    @property
    def first_p50_s(self) -> float | None:
        """Return the median time to the first text."""
        return _percentile(self.first_s, P50)

    @property
    def first_p99_s(self) -> float | None:
        """Return the 99th percentile of the time to the first text."""
        return _percentile(self.first_s, P99)

    @property
    def between_p50_s(self) -> float | None:
        """Return the median of the waits between tokens, of readers who had one."""
        return _percentile(self.between_s, P50)

    @property
    def between_most_s(self) -> float | None:
        """Return the longest wait between tokens."""
        return float(self.between_s[-1]) if len(self.between_s) else None


def waits(rows: Rows) -> Waits:
    """Return the waits of requests, with the columns of `--requests`."""
    judged = column_of(rows, "idle_s").known
    met = column_of(rows, "met")
    aborted = np.isin(texts_of(rows, "outcome"), list(ABORTED))
    late = judged & met.known & ~met.values.astype(np.bool_) & ~aborted
    first, between = column_of(rows, "ttfo_s"), column_of(rows, "idle_decode_s")
    waited = judged & between.known & (between.values > 0)
    return Waits(
        judged=int(judged.sum()),
        beyond=int(late.sum()),
        broken=int((judged & aborted).sum()),
        first_s=np.sort(first.values[judged & first.known]),
        between_s=np.sort(between.values[waited]),
    )


def sentences(found: Waits) -> str:
    """Return the waits in words."""
    if not found.judged:
        return "No request could be judged."
    who = "None" if not found.beyond else f"{found.beyond:,}"
    lines = [f"{who} of the {plural(found.judged, 'reader')} that could be judged waited longer than the class allows."]
    if found.broken:
        lines.append(f"The server's side broke off {plural(found.broken, 'reply', 'replies')}.")
    if len(found.first_s):
        lines.append(
            f"The first text came within {seconds(found.first_p50_s)} for half of them and within "
            f"{seconds(found.first_p99_s)} for 99 %."
        )
    if not len(found.between_s):
        lines.append("No reader waited between tokens.")
    else:
        lines.append(
            f"Between tokens {plural(len(found.between_s), 'reader')} waited: {seconds(found.between_p50_s)} in the "
            f"median, {seconds(found.between_most_s)} at most."
        )
    return " ".join(lines)


def _percentile(ordered: Floats, share: tuple[int, int]) -> float | None:
    return float(ordered[rank(len(ordered), share)]) if len(ordered) else None
