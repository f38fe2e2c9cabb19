"""The feed of the live page: one snapshot a second for all viewers, serialised once, as server-sent events.

| event | contents | for |
|---|---|---|
| `history` | the samples of the last minutes | a viewer's first message |
| `fleet` | counts, the newest sample, rules firing, last verdicts and decisions | all viewers |
| `page` | the streams closest to starving that pass a filter | the viewers with this filter |
| `stream` | one stream's delivery and its reader's curve | the viewers that follow it |
| `busy` | the service did not answer in time | all viewers |

The form is that of the HTML standard (section 9.2, "Server-sent events"): a name, and one line of JSON.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.core.fair_shares import has_room
from otel_llm.live.history import FIELDS, History
from otel_llm.live.selection import key_text
from otel_llm.live.viewers import Viewer
from otel_llm.shared.clock import monotonic_s
from otel_llm.shared.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from otel_llm.formats.records import StreamKey
    from otel_llm.live.history import Key, Load
    from otel_llm.live.selection import Filter, Selection

EVERY_S: Final = 1.0
MOST_VIEWERS: Final = 32
MOST_AGE_S: Final = 600.0
"""A viewer is closed at this age, and connects again: its token is checked anew."""
VERDICTS: Final = 12
_STOP_S: Final = 10.0
VERDICT_COLUMNS: Final = (
    "trace_id", "span_id", "tenant", "choice", "slo_class", "model", "instance", "measured_at", "outcome", "met",
    "tokens", "ttfo_s", "ttft_s", "idle_s", "fluidity_index", "finish_reason",
)  # fmt: skip
log = logging.getLogger(__name__)


class Fleet(NamedTuple):
    """What is shown of all streams of a tenant, or of all tenants.

    `shown`: JSON-able; `loads`: by class and place of measurement; `recent`: functions that return the rows of the last
    verdicts, oldest first, which any thread may call.
    """

    shown: dict[str, Any]
    loads: Mapping[Key, Load]
    recent: Sequence[Callable[[], Mapping[str, Any]]]


class Collected(NamedTuple):
    """The state of a service at one instant, as its evaluator's thread collected it.

    `fleets`: of all tenants (None), and of each tenant in a filter. `pages`, `streams`: JSON-able; a followed stream
    that is not in flight is absent from `streams`.
    """

    now_ns: int
    fleets: Mapping[str | None, Fleet]
    pages: Mapping[Filter, dict[str, Any]]
    streams: Mapping[StreamKey, dict[str, Any]]


class Feed:
    """The viewers of one web port, and the thread that informs them each `every_s`.

    Args:
        collect: returns the state, with the pages of these filters and these streams; called in the feed's thread. A
            TimeoutError from it is shown to the viewers as `busy`.
        service: the name of the service, with the paths of `links` by their text.
        most_viewers: further ones are refused.
        history: the samples of all tenants together; the feed's thread owns it. A tenant has one while it is viewed.
    """

    def __init__(
        self,
        collect: Callable[[Collection[Filter], Collection[StreamKey]], Collected],
        *,
        now_ns: Callable[[], int],
        service: str,
        links: Mapping[str, str],
        most_viewers: int = MOST_VIEWERS,
        history: History | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._collect = collect
        self._now_ns = now_ns
        self._about = {"service": service, "links": dict(links)}
        self._most_viewers = most_viewers
        self._histories: dict[str | None, History] = {None: History() if history is None else history}
        self._every_s = every_s
        self._lock = threading.Lock()
        self._viewers: set[Viewer] = set()
        self._verdicts: dict[StreamKey, dict[str, Any]] = {}
        """The verdicts of followed streams that have ended."""
        self._before: set[StreamKey] = set()
        """The streams that were followed at the last tick."""
        self._searched: Callable[[], Mapping[str, Any]] | None = None
        """The newest of the last verdicts then: making their rows anew each second would cost more than all else."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-llm-live", daemon=True)
        self._failed = False
        self.dropped = 0
        """Viewers that read too slowly."""

    @property
    def viewers(self) -> int:
        """Return how many viewers there are."""
        return len(self._viewers)

    def start(self) -> None:
        """Start the thread, unless no viewer may join."""
        if self._most_viewers:
            self._thread.start()

    def stop(self) -> None:
        """End the thread and close all viewers; not in the thread that `collect` waits for."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        with self._lock:
            viewers, self._viewers = self._viewers, set()
        for viewer in viewers:
            viewer.close()

    def join(self, selection: Selection, owner: str | None = None) -> Viewer:
        """Return a new viewer, in whose event loop this is called; its first message is that of the next second.

        `owner`: whose share of the viewers it takes, by default its tenant's; an operator's has no limit.

        Raises:
            UnavailableError: there are as many as may be, or the service is stopping.
        """
        viewer = Viewer(selection, self._now_ns(), owner=selection.filter.tenant if owner is None else owner)
        with self._lock:
            if self._stop.is_set():
                raise UnavailableError("the service is stopping")
            if not self._has_room(viewer.owner):
                raise UnavailableError(f"{self._most_viewers} viewers are there already (limits: viewers)")
            self._viewers.add(viewer)
        return viewer

    def _has_room(self, owner: str | None) -> bool:
        """Return whether a viewer may join; those of one owner leave room for others, an operator's need not."""
        if owner is None:
            return len(self._viewers) < self._most_viewers
        own = sum(one.owner == owner for one in self._viewers)
        return has_room(own, len(self._viewers), self._most_viewers)

    def leave(self, viewer: Viewer) -> None:
        """Forget a viewer."""
        viewer.close()
        with self._lock:
            self._viewers.discard(viewer)

    def tick(self) -> None:
        """Inform all viewers, and take a sample; the thread does so each `every_s`."""
        viewers = self._present()
        followed = {viewer.selection.stream for viewer in viewers} - {None}
        try:
            found = self._collect({viewer.selection.filter for viewer in viewers}, [one for one in followed if one])
        except TimeoutError:
            busy = event("busy", {})
            for viewer in viewers:
                viewer.offer(busy)
            return
        self._histories = {tenant: self._histories.get(tenant) or History() for tenant in found.fleets}
        samples = {tenant: self._histories[tenant].add(found.now_ns, one.loads) for tenant, one in found.fleets.items()}
        self._keep_verdicts(found, {one for one in followed if one})
        if viewers:
            self._inform(viewers, found, samples)

    def _run(self) -> None:
        due_s = monotonic_s()
        while not self._stop.wait(max(0.0, due_s - monotonic_s())):
            due_s = max(due_s + self._every_s, monotonic_s())
            try:
                self.tick()
            except Exception:  # a bug of ours must not end the page
                if not self._failed:
                    log.exception("otel-llm: the live page could not be updated")
                self._failed = True

    def _present(self) -> list[Viewer]:
        """Return the viewers, without those that were closed or are too old."""
        oldest_ns = self._now_ns() - round(MOST_AGE_S * 1e9)
        with self._lock:
            gone = {viewer for viewer in self._viewers if viewer.closed or viewer.joined_ns < oldest_ns}
            self._viewers -= gone
            viewers = list(self._viewers)
        for viewer in gone:
            self.dropped += viewer.overrun
            viewer.close()
        return viewers

    def _inform(self, viewers: Sequence[Viewer], found: Collected, samples: Mapping[str | None, list[Any]]) -> None:
        shown = {viewer.selection.filter.tenant for viewer in viewers}
        fleets = {tenant: self._fleet(tenant, found.fleets[tenant], samples[tenant]) for tenant in shown}
        pages = {chosen: event("page", page) for chosen, page in found.pages.items()}
        streams = {key: event("stream", self._followed(found, key)) for key in self._streams_of(viewers)}
        messages: dict[tuple[Selection, bool], bytes] = {}
        for viewer in viewers:
            chosen = viewer.selection
            case = (chosen, viewer.greeted)
            if case not in messages:
                greeting = b"" if viewer.greeted else self._greeting(chosen.filter.tenant)
                stream = b"" if chosen.stream is None else streams[chosen.stream]
                messages[case] = b"".join((greeting, fleets[chosen.filter.tenant], pages[chosen.filter], stream))
            viewer.greeted = True
            viewer.offer(messages[case])

    def _fleet(self, tenant: str | None, fleet: Fleet, sample: list[Any]) -> bytes:
        history = self._histories[tenant]
        verdicts = [_verdict(row()) for row in fleet.recent[-VERDICTS:]][::-1]
        names = {"keys": history.keys, "left_out": history.left_out}
        return event("fleet", {**fleet.shown, **names, "sample": sample, "verdicts": verdicts})

    def _greeting(self, tenant: str | None) -> bytes:
        """Return the history without the newest sample, which `fleet` has."""
        older = self._histories[tenant].samples[:-1]
        return event("history", {**self._about, "every_s": self._every_s, "fields": FIELDS, "samples": older})

    @staticmethod
    def _streams_of(viewers: Sequence[Viewer]) -> set[StreamKey]:
        return {viewer.selection.stream for viewer in viewers if viewer.selection.stream is not None}

    def _followed(self, found: Collected, key: StreamKey) -> dict[str, Any]:
        """Return a followed stream: in flight, or with its verdict, or gone."""
        name, stream = key_text(key), found.streams.get(key)
        return {"key": name, "verdict": self._verdicts.get(key)} if stream is None else {"key": name, **stream}

    def _keep_verdicts(self, found: Collected, followed: set[StreamKey]) -> None:
        """Look for the verdicts of followed streams that have ended: of those new here among all, else the new ones."""
        self._verdicts = {key: row for key, row in self._verdicts.items() if key in followed}
        ended = followed - found.streams.keys() - self._verdicts.keys()
        until = self._searched if followed <= self._before else None
        recent = found.fleets[None].recent
        self._searched, self._before = (recent[-1] if recent else None), followed
        for make in reversed(recent) if ended else ():
            if make is until:
                return
            row = make()
            key = _key_of(row)
            if key in ended:
                self._verdicts[key] = _verdict(row)
                ended.discard(key)
            if not ended:
                return


def event(name: str, value: Any) -> bytes:
    """Return a server-sent event; JSON has no line breaks of its own.

    Raises:
        ValueError: `value` holds a NaN or an infinity.
    """
    return f"event: {name}\ndata: {json.dumps(value, allow_nan=False, separators=(',', ':'))}\n\n".encode()


def _verdict(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in VERDICT_COLUMNS}


def _key_of(row: Mapping[str, Any]) -> StreamKey | None:
    """Return the key of a verdict's row; None for the span of another instrumentation."""
    if row["choice"] is None:
        return None
    return bytes.fromhex(row["trace_id"]), bytes.fromhex(row["span_id"]), row["tenant"], row["choice"]
