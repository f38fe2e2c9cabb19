"""The interface of an audit's result for the comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from otel_llm.slo.classes import SloClasses


class Findings(Protocol):
    """Judged requests and the classes that judged them; an `audit.Audit` is one."""

    @property
    def judged_table(self) -> pa.Table:
        """The requests, with the columns of `judge_batch.JUDGED`, in the order of rows."""

    @property
    def slo(self) -> SloClasses:
        """The classes."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Harmless anomalies, by name."""

    @property
    def unkept(self) -> Mapping[str, int]:
        """The requests that files count and do not keep, by outcome: the others are a sample."""
