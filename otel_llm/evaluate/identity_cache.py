"""Cache what a commit says of its stream, by its attributes: most commits have the attributes of earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.evaluate.streams.stream_in_flight import group_of

if TYPE_CHECKING:
    from otel_llm.evaluate.streams.stream_in_flight import Group
    from otel_llm.readers.assemble.received_request import ReceivedRequest
    from otel_llm.readers.records import Attributes
    from otel_llm.slo.classes import SloClass, SloClasses

_REMEMBERED: Final = 1024


@dataclass(frozen=True, slots=True)
class CommitIdentity:
    """What is known of a stream by the attributes of its commit alone; `unknown`: they name a class that is not."""

    slo: SloClass
    unknown: bool
    group: Group
    exact_resume: bool
    input_tokens: int | None


class IdentityCache:
    """Resolve commits to classes and groups; `classes`: those that streams are judged by."""

    def __init__(self, classes: SloClasses) -> None:
        self._classes = classes
        self._known: dict[int, tuple[Attributes, CommitIdentity]] = {}

    def of(self, parts: ReceivedRequest) -> CommitIdentity:
        """Return what the commit of choice 0 says of a request, where nothing else of it was received."""
        attributes = parts.streams[0].prefix.attributes
        known = self._known.get(id(attributes))  # the reader gives those that are written alike as one object
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[id(attributes)] = attributes, self._read(parts)  # kept, so that no other gets its id
        return known[1]

    def _read(self, parts: ReceivedRequest) -> CommitIdentity:
        resolved = parts.resolve(0)
        slo, unknown = self._classes.choose(resolved.declared_class, resolved.attributes)
        return CommitIdentity(slo, unknown, group_of(resolved, slo), resolved.exact_resume, resolved.input_tokens)
