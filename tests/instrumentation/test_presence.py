"""What is known of a stream whose loop and whose own end are seen in any order."""

from __future__ import annotations

import weakref
from itertools import count

from otel_llm.instrumentation.presence import Presence


class Thing:
    """Something that can be watched."""


def test_a_loop_that_went_with_its_stream_was_left_whichever_was_told_first() -> None:
    presence = Presence(count(1).__next__, 0)
    stream, loop = Thing(), Thing()
    presence.open(stream, iter(()))
    presence.enter(loop)
    presence._loop = weakref.ref(loop)  # the garbage collector has not come to its callback yet
    del stream, loop
    assert presence.collected
    assert presence.left_ns(None) is not None


def test_who_reads_on_in_another_way_has_not_left() -> None:
    presence = Presence(count(1).__next__, 0)
    stream, loop = Thing(), Thing()
    presence.open(stream, iter(()))
    presence.enter(loop)
    del loop
    assert presence.left_ns(None) is not None
    assert presence.left_ns(100) is None
    assert presence.left_ns(None) is None
    assert not presence.collected


def test_a_stream_that_nobody_looped_over_was_not_left() -> None:
    presence = Presence(count(1).__next__, 0)
    stream = Thing()
    presence.open(stream, iter(()))
    del stream
    assert presence.collected
    assert presence.left_ns(None) is None
