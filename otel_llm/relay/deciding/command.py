"""Commands about the relay's own streams and backends: from its own rules, or from a collector."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.actions.execute.events import Order
    from otel_llm.formats.records import RequestKey


@dataclass(frozen=True, slots=True)
class Command:
    """A verb and its target.

    `id`: the idempotency key. `expires_ns`: its expiry, unix ns of the relay's clock. `rule`: the one that decided it.
    `request`: its stream, None for scopes instance and class. `instance`: "" if it has none. `candidates`: of a
    `preempt`, the requests to try, in their order.
    """

    id: str
    verb: str
    expires_ns: int
    rule: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    request: RequestKey | None = None
    instance: str = ""
    candidates: tuple[RequestKey, ...] = ()

    @classmethod
    def of_order(cls, order: Order) -> Command:
        """Return the command of one of the relay's own orders."""
        decision = order.decision
        return cls(
            order.id,
            order.verb,
            order.expires_ns,
            decision.rule,
            decision.arguments,
            None if decision.stream is None else decision.stream[:3],
            order.instance,
            tuple(one.key[:3] for one in order.candidates),
        )
