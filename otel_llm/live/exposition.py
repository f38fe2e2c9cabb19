"""The Prometheus text of metric families, rendered at most once a second."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.core import Metric

SHARED_NS: Final = 1_000_000_000
"""How long a rendering is reused: scrapers ask every 5 to 60 s, attackers as often as they can."""


def text_of(families: Iterable[Metric]) -> bytes:
    """Return the families in text format 0.0.4."""
    return generate_latest(_Prepared(families))


class SharedText:
    """A rendering that concurrent scrapes, and those of the next second, share.

    Args:
        collect: returns the families; called in the thread of a scrape that finds no rendering to share.
        now_ns: a monotonic clock.

    The text is written in a thread of its own.
    """

    def __init__(self, collect: Callable[[], Iterable[Metric]], now_ns: Callable[[], int]) -> None:
        self._collect = collect
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._latest: Future[bytes] | None = None
        self._until_ns = 0

    def text(self) -> Future[bytes]:
        """Return the text, which may be in progress; its error is that of `collect`."""
        with self._lock:
            if self._latest is not None and (not self._latest.done() or self._now_ns() < self._until_ns):
                return self._latest
            begun = self._latest = Future()
        try:
            families = self._collect()
            threading.Thread(target=self._render, args=(begun, families), name="otel-llm-metrics", daemon=True).start()
        except BaseException as error:  # noqa: BLE001 - all waiting scrapes get it
            begun.set_exception(error)
        return begun

    def _render(self, begun: Future[bytes], families: Iterable[Metric]) -> None:
        try:
            text = text_of(families)
        except BaseException as error:  # noqa: BLE001 - as above
            begun.set_exception(error)
            return
        self._until_ns = self._now_ns() + SHARED_NS
        begun.set_result(text)


class _Prepared(CollectorRegistry):
    """A registry of prepared families, for the text writer."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__(auto_describe=False)
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families
