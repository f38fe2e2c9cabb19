"""Exports of whole streams: an application, or a Collector that groups by trace, sends a stream when it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collector_load.fleet import COMMIT_BEFORE_FLUSH_NS, Reply, applications_of, flushes
from collector_load.replies import FLUSH_NS

from otel_llm.export.wire import export_request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collector_load.fleet import Application, Export, Sent, Slots

    from otel_llm.export.records import Record


def whole_streams(mix: Sequence[Slots], start_ns: int, seconds: float, sent: Sent, together: int) -> Iterator[Export]:
    """Yield exports as `exports_of` does, each with every span of the streams that ended since the last one.

    The streams are under way when the first export is due, each at another place, so that as many end at any time.
    """
    applications = applications_of(mix, together)
    running = {
        application.number: [_begun(application, slots, start_ns) for slots, _ in application.slots]
        for application in applications
    }
    for due_ns, application in flushes(applications, start_ns, seconds):
        records: list[Record] = []
        replies = running[application.number]
        tokens = sent.tokens
        for at, reply in enumerate(replies):
            if _end_ns(reply) <= due_ns:
                records += _told(reply)
                sent.tokens += reply.told
                sent.segments -= 1  # the request span is none
                sent.requests += 1
                script = application.slots[at][0].write(application.rng)
                replies[at] = Reply(script, due_ns - COMMIT_BEFORE_FLUSH_NS, application.resource, application.draw)
        if records:
            raw = export_request(records)
            sent.segments += len(records)
            sent.log.append((due_ns, len(records), sent.tokens - tokens))
            sent.bytes += len(raw)
            yield due_ns, application.number, raw


def _begun(application: Application, slots: Slots, start_ns: int) -> Reply:
    """Return a stream that ends at some time within its own length after `start_ns`."""
    script = slots.write(application.rng)
    assert script.end_ns is not None, "a stream without end is never sent whole"
    commit_ns = start_ns - int(application.rng.integers(0, script.end_ns))
    return Reply(script, commit_ns, application.resource, application.draw)


def _end_ns(reply: Reply) -> int:
    assert reply.script.end_ns is not None
    return reply.commit_ns + reply.script.end_ns


def _told(reply: Reply) -> list[Record]:
    """Return all that a stream says, cut into segments every 250 ms."""
    records: list[Record] = [*reply.begin()]
    now_ns = reply.commit_ns + COMMIT_BEFORE_FLUSH_NS
    while not reply.done:
        now_ns += FLUSH_NS
        records += reply.flush(now_ns)
    return records
