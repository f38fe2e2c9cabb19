"""A stream that a hook records and that the application tracks as well: one recording, with the statements of `track`.

Requests that a tracked stream makes while it is read are not recorded below it (`beneath`).
If the SDK was called before `track`, its recording is announced already and stays; it gets the stated class, and its
tokens are those of `kind` and `count`.
"""

from __future__ import annotations

import gc
import itertools
from types import AsyncGeneratorType, CellType, GeneratorType
from typing import TYPE_CHECKING, Any, Final

from otel_llm import semconv
from otel_llm.export import host_log
from otel_llm.instrumentation.segments.chunks import FRAMING
from otel_llm.instrumentation.stacks.httpx import TAP
from otel_llm.instrumentation.stacks.sdk_stream import RECORDING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.instrumentation.parse.callback_reader import CallbackReader
    from otel_llm.instrumentation.segments.choices import Reader
    from otel_llm.instrumentation.segments.chunks import Reading

DEPTH: Final = 4
"""A generator over a generator over the SDK's loop over its stream."""
MAX_HELD: Final = 100
"""The most members of an object that are searched."""
_FOLLOWED: Final = (GeneratorType, AsyncGeneratorType, CellType, map, filter, zip, enumerate, tuple)

_warned: Final[list[bool]] = []


class StatedReader:
    """A reader that reads an SDK's chunks twice: by the SDK's reader for statements, by `track`'s reader for tokens.

    `silent`: the tokens are those of another stream, which is made of this one.
    """

    plain = False

    def __init__(self, theirs: Reader, stated: CallbackReader, *, silent: bool) -> None:
        self._theirs = theirs
        self._stated = stated
        self._silent = silent
        self.reported = theirs.reported
        self.basis = stated.basis if stated.counts else theirs.basis

    def plain_size(self, chunk: object) -> int:  # noqa: ARG002
        """Return 0: nothing is known of a chunk before it is read."""
        return 0

    def __call__(self, chunk: Any) -> Reading:
        """Return the reading of a chunk."""
        theirs = self._theirs(chunk)
        if self._silent:
            return FRAMING  # also for a complete choice: the outer stream's last chunk is still to come
        choice = theirs[0][0] if theirs else 0
        reported = [count for _, _, count, _ in theirs if count]
        tokens = tuple(
            (choice, kind, own, False)
            for _, kind, count, _ in self._stated(chunk)
            for own in ([count] if self._stated.counts else reported or [count])
        )
        return (*tokens, *((done, kind, 0, True) for done, kind, _, finished in theirs if finished))


def recording_of(stream: object) -> Recording | None:
    """Return the running recording of a stream that a hook has seen; None if there is none."""
    members = getattr(stream, "__dict__", None) or {}
    recording = members.get(RECORDING)
    if recording is None:
        tap = getattr(members.get("stream"), TAP, (None,))[0] or getattr(getattr(stream, "_buffer", None), "tap", None)
        recording = getattr(tap, "recording", None)
    return None if recording is None or recording.done else recording


def recording_beneath(stream: object, depth: int = DEPTH) -> Recording | None:
    """Return the recording of a stream that the iterator `stream`, not begun yet, references; None for none."""
    members = getattr(stream, "__dict__", None)  # once it was read, the attributes are no referents any more
    attributes = members.values() if isinstance(members, dict) else ()
    for held in itertools.islice(itertools.chain(gc.get_referents(stream), list(attributes)), MAX_HELD):
        recording = recording_of(held)
        if recording is None and depth and isinstance(held, _FOLLOWED):
            recording = recording_beneath(held, depth - 1)
        if recording is not None:
            return recording
    return None


def state(recording: Recording, ours: Mapping[str, AttributeValue]) -> None:
    """Add the statements of `track` to a request that is announced already."""
    slo_class = ours.get(semconv.SLO_CLASS)
    if slo_class is not None and recording.slo_class not in {None, slo_class} and not _warned:
        _warned.append(True)
        host_log.warning(
            "otel_llm.track names another SLO class than the call that it tracks was made with, which stays: "
            "name it before the call, in the baggage (%s), or make the call inside of a tracked generator",
            semconv.SLO_CLASS,
        )
    recording.identify(ours)
