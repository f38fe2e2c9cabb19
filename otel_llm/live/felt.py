"""The sums that the live page draws: what readers got and waited, by class, place of measurement and tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.live.history import Totals

if TYPE_CHECKING:
    from otel_llm.live.history import Key


class Felt:
    """Sums since the start.

    There are few: classes and places of measurement are configured, and tenants are named by tokens.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, str, str], Totals] = {}

    def add(self, slo_class: str, measured_at: str, tenant: str, more: Totals) -> None:
        """Add to the sums of a class, a place of measurement and a tenant."""
        key = (slo_class, measured_at, tenant)
        known = self._of.get(key)
        self._of[key] = more if known is None else known.plus(more)

    def totals(self, tenant: str | None) -> dict[Key, Totals]:
        """Return the sums of a tenant, or of all tenants (None), by class and place of measurement."""
        found: dict[Key, Totals] = {}
        for (slo_class, measured_at, owner), totals in self._of.items():
            if tenant in (None, owner):
                found[slo_class, measured_at] = found.get((slo_class, measured_at), Totals()).plus(totals)
        return found
