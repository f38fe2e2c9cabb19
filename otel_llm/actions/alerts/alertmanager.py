"""Send all alerts to one Alertmanager: what to send follows from what was sent last, and when, so nothing piles up.

As in Prometheus, an alert that fires is valid for four times the resend interval and sent again at each, so that two
requests may fail. A resolved alert is sent again for a while, since the first request may not have arrived. An
Alertmanager that was restarted has lost its alerts, but its own log names the people that it has notified; it gets the
alerts anew within one interval.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.actions.delivery.http_request import NoAnswerError, prepare, send_request
from otel_llm.config.otlp_target import user_agent
from otel_llm.config.secret_files import read_bearer
from otel_llm.config.yaml_file import ConfigError
from otel_llm.export.transport.attempt import Attempt, retry_wait_s
from otel_llm.export.transport.http import attempt_of_status
from otel_llm.shared.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_llm.actions.alerts.places import Key
    from otel_llm.actions.settings import AlertmanagerSettings
    from otel_llm.shared.clock import Clock

PATH: Final = "/api/v2/alerts"
SHORTEST_RESEND_S: Final = 1.0
MISSES: Final = 4
"""Intervals for which an alert stays valid. Source: Prometheus, cmd/prometheus, `sendAlerts`."""
MOST_AT_ONCE: Final = 256
LONGEST_WAIT_S: Final = 60.0
_log = logging.getLogger(__name__)


class Post(NamedTuple):
    """An alert to send: the version of its state, and its entry."""

    key: Key
    version: int
    entry: dict[str, Any]


@dataclass(slots=True)
class Sent:
    """Counts of alerts by their result at this Alertmanager; one that is sent again counts again."""

    sent: int = 0
    refused: int = 0
    failures: int = 0
    """Requests that were not answered, or not with success."""


def valid_ns(settings: AlertmanagerSettings) -> int:
    """Return how long an alert stays valid after it was sent."""
    return round(MISSES * max(SHORTEST_RESEND_S, settings.resend_s) * 1e9)


class Alertmanager:
    """The sender of alerts to one Alertmanager, with a thread of its own: `start`, `wake` after each change, `stop`.

    `render(now_ns, sent)`: `sent` maps keys to the versions that were sent. It returns the alerts whose version is
    another one, and the keys of all alerts.
    """

    def __init__(
        self,
        url: str,
        settings: AlertmanagerSettings,
        clock: Clock,
        render: Callable[[int, Mapping[Key, int]], tuple[list[Post], set[Key]]],
    ) -> None:
        self._url = url
        self._settings = settings
        self._clock = clock
        self._render = render
        self._told: dict[Key, tuple[int, int]] = {}
        self._changed = threading.Condition()
        self._woken = False
        self._stopping = False
        self._failures = 0
        self._reported = False
        self.counts = Sent()
        self._thread = threading.Thread(target=self._run, name="otel-llm-alertmanager", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        prepare()
        self._thread.start()

    def wake(self) -> None:
        """Send soon, since something has changed; after a failure the wait goes on all the same."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def stop(self, grace_s: float) -> None:
        """Send what is new within the grace, and stop. What fires is left firing: the next run goes on."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(grace_s)

    @property
    def is_behind(self) -> bool:
        """Return whether it is away: the last request failed."""
        return self._failures > 0

    def step(self, now_ns: int) -> float | None:
        """Send what is due; return the seconds to wait after a failure, None if there was none."""
        resend_ns = round(max(SHORTEST_RESEND_S, self._settings.resend_s) * 1e9)
        fresh = {key: version for key, (version, at_ns) in self._told.items() if now_ns - at_ns < resend_ns}
        posts, keys = self._render(now_ns, fresh)
        for key in self._told.keys() - keys:
            del self._told[key]
        for first in range(0, len(posts), MOST_AT_ONCE):
            attempt = self._deliver(posts[first : first + MOST_AT_ONCE], now_ns)
            if attempt.verdict != "accepted":
                wait_s = retry_wait_s(attempt, self._failures, LONGEST_WAIT_S)
                self._failures += 1
                return wait_s
        self._failures = 0
        self._reported = self._reported and not posts
        return None

    def _run(self) -> None:
        wait_s: float | None = None
        while True:
            with self._changed:
                if wait_s is not None:
                    self._changed.wait_for(lambda: self._stopping, wait_s)
                else:
                    self._changed.wait_for(lambda: self._woken or self._stopping, self._until_resend_s())
                self._woken = False
                stopping = self._stopping
            try:
                wait_s = self.step(self._clock.now_ns())
            except Exception:  # noqa: BLE001  a bug of ours: the alerts stay, the next round may succeed
                _log.exception("otel-llm: alerts could not be sent")
                wait_s = LONGEST_WAIT_S
            if stopping:
                return

    def _until_resend_s(self) -> float:
        if not self._told:
            return LONGEST_WAIT_S
        first_ns = min(at_ns for _, at_ns in self._told.values())
        wait_s = max(SHORTEST_RESEND_S, self._settings.resend_s) - (self._clock.now_ns() - first_ns) / 1e9
        return min(max(wait_s, 0.0), LONGEST_WAIT_S)

    def _deliver(self, posts: Sequence[Post], now_ns: int) -> Attempt:
        """Send; if some are refused, find out which: the others were accepted, or will be."""
        attempt = self._post([post.entry for post in posts])
        if attempt.verdict == "accepted":
            self.counts.sent += len(posts)
        elif attempt.divisible and len(posts) > 1:
            middle = len(posts) // 2
            first = self._deliver(posts[:middle], now_ns)
            return first if first.verdict != "accepted" else self._deliver(posts[middle:], now_ns)
        elif attempt.divisible:
            self.counts.refused += 1
            _log.warning("otel-llm: an Alertmanager refuses %s: %s", dict(posts[0].key), attempt.reason)
        else:
            self.counts.failures += 1
            if not self._reported:
                _log.warning(
                    "otel-llm: alerts cannot be sent (they are kept, and sent when they can): %s", attempt.reason
                )
            self._reported = True
            return attempt
        for post in posts:
            self._told[post.key] = (post.version, now_ns)
        return Attempt("accepted")

    def _post(self, entries: list[dict[str, Any]]) -> Attempt:
        settings = self._settings
        headers = {"content-type": "application/json", "user-agent": user_agent()}
        try:
            if settings.bearer_file is not None:
                headers["authorization"] = f"Bearer {read_bearer(settings.bearer_file)}"
            body = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
            answer = send_request("POST", self._url + PATH, headers, body, settings.timeout_s, settings.ca_file)
        except NoAnswerError as error:
            return Attempt("retry", error.reason)
        except ConfigError as error:
            return Attempt("retry", str(error))
        if answer.ok:
            return Attempt("accepted")
        attempt = attempt_of_status(answer.status, answer.headers.get("retry-after"))
        says = one_line((answer.body or b"")[:200].decode("utf-8", "replace"))
        return replace(attempt, reason=f"{attempt.reason}: {says}")
