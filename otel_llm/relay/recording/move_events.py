"""The attributes of the events on a relay's request span: a stream moved, paused, or resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm import semconv

if TYPE_CHECKING:
    from otel_llm.export.records import AttributeValue


def moved(
    from_: str | None,
    to: str | None,
    tokens_carried: int | None = None,
    gap_seconds: float | None = None,
    *,
    rule: str | None = None,
    reason: str | None = None,
) -> dict[str, AttributeValue]:
    """Return the attributes of a move, without those that are not known.

    `gap_seconds`: from the last text of one backend to the first of the other; a rule or a reason caused it.
    """
    attributes: dict[str, AttributeValue | None] = {
        semconv.MIGRATED_FROM: from_,
        semconv.MIGRATED_TO: to,
        semconv.TOKENS_CARRIED: tokens_carried,
        semconv.GAP_SECONDS: gap_seconds,
        semconv.MIGRATION_RULE: rule,
        semconv.MIGRATION_REASON: reason,
    }
    return {name: value for name, value in attributes.items() if value is not None}
