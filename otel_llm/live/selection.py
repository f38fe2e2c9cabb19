"""The streams that a viewer of the live page has selected: a filter, and one stream to follow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.formats.records import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.formats.records import StreamKey

_STREAM: Final = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})-(\d{1,6})(?:-(.+))?", re.ASCII)


class SelectionError(ValueError):
    """The parameters of a request for events cannot be used."""


SORTS: Final = ("runway", "idle", "age", "tokens")
"""The orders of a page: the shortest runway first, the longest idle time, the greatest age, the most tokens."""


class Filter(NamedTuple):
    """The names that a stream must have, None: any; and the order of the streams that have them.

    `tenant`: all that is shown is of this tenant, not only the streams.
    """

    slo_class: str | None = None
    model: str | None = None
    instance: str | None = None
    sort: str = SORTS[0]
    tenant: str | None = None

    @property
    def matches_all(self) -> bool:
        """Return whether no name is wanted within the tenant."""
        return self.slo_class is self.model is self.instance is None

    def matches(self, slo_class: str, model: str, instance: str) -> bool:
        """Return whether a stream with these names is shown."""
        return self.slo_class in (None, slo_class) and self.model in (None, model) and self.instance in (None, instance)


class Selection(NamedTuple):
    """The streams that a viewer sees: those of `filter`, and `stream` in detail; None: none."""

    filter: Filter = Filter()
    stream: StreamKey | None = None

    def within(self, tenant: str | None) -> Selection:
        """Return the selection for a viewer that may see this tenant only; None: all."""
        if tenant is None:
            return self
        stream = None if self.stream is None else (*self.stream[:2], tenant, self.stream[3])
        return Selection(self.filter._replace(tenant=tenant), stream)


def key_text(key: StreamKey) -> str:
    """Return the key of a stream as in the parameter `stream`."""
    trace_id, span_id, tenant, choice = key
    return row_key({"trace_id": trace_id.hex(), "span_id": span_id.hex(), "tenant": tenant, "choice": choice})


def row_key(row: Mapping[str, Any]) -> str:
    """Return the key of a row's stream as in the parameter `stream`: the default tenant is left out."""
    owner = "" if row["tenant"] == DEFAULT_TENANT else f"-{row['tenant']}"
    return f"{row['trace_id']}-{row['span_id']}-{row['choice']}{owner}"


def selection_of(parameters: Mapping[str, str]) -> Selection:
    """Return the selection of a query: `slo_class`, `model`, `instance`, `sort`, `tenant`, `stream`, each optional.

    Raises:
        SelectionError: `stream` is no key of a stream, `sort` no order, or a parameter is unknown.
    """
    unknown = parameters.keys() - {*Filter._fields, "stream"}
    if unknown:
        raise SelectionError("unknown parameter: there are slo_class, model, instance, sort, tenant, stream")
    if parameters.get("sort", SORTS[0]) not in SORTS:
        raise SelectionError(f"unknown order: sort by {', '.join(SORTS)}")
    named = {name: parameters[name] for name in Filter._fields if name in parameters}
    if "stream" not in parameters:
        return Selection(Filter(**named))
    found = _STREAM.fullmatch(parameters["stream"])
    if found is None:
        raise SelectionError("stream is no key of a stream: write TRACE_ID-SPAN_ID-CHOICE[-TENANT], in lower-case hex")
    trace_id, span_id, choice, tenant = found.groups()
    key = (bytes.fromhex(trace_id), bytes.fromhex(span_id), tenant or DEFAULT_TENANT, int(choice))
    return Selection(Filter(**named), key)
