"""A cache of stream identities by the attributes of commits: most commits have the attributes of earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.evaluate.streams.stream_in_flight import group_of

if TYPE_CHECKING:
    from otel_llm.evaluate.streams.stream_in_flight import Group
    from otel_llm.formats.assemble.received_request import ReceivedRequest
    from otel_llm.formats.records import Attributes
    from otel_llm.slo.classes import SloClass, SloClasses

_CACHED: Final = 1024


@dataclass(frozen=True, slots=True)
class CommitIdentity:
    """The identity of a stream by its tenant and its commit's attributes; `unknown`: they name an unknown class."""

    slo: SloClass
    unknown: bool
    group: Group
    exact_resume: bool
    input_tokens: int | None


class IdentityCache:
    """A cache of the identities of commits; `classes`: the SLO classes that judge streams."""

    def __init__(self, classes: SloClasses) -> None:
        self._classes = classes
        self._known: dict[tuple[int, str], tuple[Attributes, CommitIdentity]] = {}

    def of(self, parts: ReceivedRequest) -> CommitIdentity:
        """Return the identity of a request from its commit of choice 0; nothing else of it may have been received."""
        attributes = parts.streams[0].prefix.attributes
        key = (id(attributes), parts.tenant)  # the reader gives equal attributes as one object
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _CACHED:
                self._known.clear()
            known = self._known[key] = (attributes, self._read(parts))  # a reference, so that the id stays unique
        return known[1]

    def _read(self, parts: ReceivedRequest) -> CommitIdentity:
        resolved = parts.resolve(0)
        slo, unknown = self._classes.choose(resolved.declared_class, resolved.attributes)
        return CommitIdentity(slo, unknown, group_of(resolved, slo), resolved.exact_resume, resolved.input_tokens)
