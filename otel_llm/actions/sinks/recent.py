"""The newest findings, of all tenants together and of each tenant."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

from otel_llm.config.secret_files import MAX_TOKENS

T = TypeVar("T")

MOST: Final = 1000
MOST_OF_TENANT: Final = 200
MOST_TENANTS: Final = MAX_TOKENS
"""As many as a file of tokens can name; of more, the tenants without a recent finding are forgotten."""


class Recent(Generic[T]):
    """The newest items; a tenant that has many displaces no other tenant's from its own list."""

    def __init__(self, most: int = MOST, most_of_tenant: int = MOST_OF_TENANT) -> None:
        self._every: deque[T] = deque(maxlen=most)
        self._of: OrderedDict[str, deque[T]] = OrderedDict()
        self._most_of_tenant = most_of_tenant

    def add(self, tenant: str, item: T) -> None:
        """Add the newest item."""
        self._every.append(item)
        own = self._of.get(tenant)
        if own is None:
            own = self._of[tenant] = deque(maxlen=self._most_of_tenant)
            if len(self._of) > MOST_TENANTS:
                self._of.popitem(last=False)
        own.append(item)
        self._of.move_to_end(tenant)

    def of(self, tenant: str | None = None) -> list[T]:
        """Return the newest items of a tenant, or of all tenants (None), oldest first."""
        return list(self._every if tenant is None else self._of.get(tenant, ()))
