"""Alerts made of decisions and sent to Alertmanagers, webhooks, a log file and OTLP.

`take` is called by the evaluator: it only notes which streams fire, and says what becomes of an alert, for the record.
A thread works a moment later: it ends alerts that have settled, saves what is to be sent, and hands it to the channels.
Each Alertmanager and each other channel has a thread of its own, so that none waits for another. What was saved before
it was sent arrives at least once; its id makes it known as a repetition.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from otel_llm.actions.alerts.alert_formats import cloud_event_of, for_alertmanager, line_of
from otel_llm.actions.alerts.alertmanager import Alertmanager, Post, valid_ns
from otel_llm.actions.alerts.firing import Alert, Firing
from otel_llm.actions.alerts.places import tenant_of
from otel_llm.actions.delivery.channels import LOG, OTLP, WEBHOOK, channels_of, close
from otel_llm.actions.delivery.dead_letters import DEAD_LETTERS, bury
from otel_llm.actions.delivery.durable_queue import BACKLOG, DurableQueue, Message
from otel_llm.actions.execute.events import rfc3339
from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.rules.decisions.output_file import read_inside
from otel_llm.shared.clock import monotonic_s
from otel_llm.shared.whole_files import replace_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from otel_llm.actions.alerts.firing import Event
    from otel_llm.actions.alerts.places import Key, Step
    from otel_llm.actions.settings import ServiceSettings
    from otel_llm.rules.decisions.decision_records import Decision, Outcome
    from otel_llm.shared.clock import Clock

LINGER_S: Final = 0.2
"""How long decisions are collected: 2,000 readers who starve at once are one alert of 2,000, not 2,000 of one."""
TABLE_FULL: Final = "dropped: table full"
_IDLE_S: Final = 60.0
_REPLAYED_AT_ONCE: Final = 1000
_log = logging.getLogger(__name__)
STATE_FILE: Final = "alerts.json"
VERSION: Final = 1
_KEPT: Final = ("scope", "starts_ns", "empty_ns", "ends_ns", "total", "rules", "samples", "facts")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class State:
    """The contents of the file; `saved_ns`: it covers every decision until then, None if there was no file."""

    saved_ns: int | None = None
    alerts: list[Alert] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


def state_bytes(state: State) -> bytes:
    """Return the file's contents. The members of an alert are not in it: they come from the journal, read again."""
    alerts = [{"labels": dict(one.key), **{name: getattr(one, name) for name in _KEPT}} for one in state.alerts]
    messages = [message.record() for message in state.messages]
    whole = {"version": VERSION, "saved_ns": state.saved_ns, "alerts": alerts, "messages": messages}
    return json.dumps(whole, separators=(",", ":")).encode() + b"\n"


def write_state(folder: Path, data: bytes) -> None:
    """Replace the file; raises OSError if it cannot be written, and then leaves the old one in place."""
    replace_whole(folder / STATE_FILE, data, durable=False)


def read_state(folder: Path) -> State:
    """Return the saved state; an empty one if there is no file, or if the file is broken, which is logged."""
    path = folder / STATE_FILE
    try:
        whole = json.loads(_contents(path))
        return state_of(whole)
    except FileNotFoundError:
        return State()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.warning("%s: cannot be used: %s; alerts that fire are sent again", path, error)
        return State()


def _contents(path: Path) -> bytes:
    with read_inside(path) as file:
        return file.readall()


def state_of(whole: dict[str, Any]) -> State:
    """Return what the file's JSON says. Raises ValueError, KeyError, TypeError or AttributeError if it is broken."""
    if whole["version"] != VERSION:
        raise ValueError(f"version {whole['version']}")
    alerts = [_alert(one) for one in whole["alerts"]]
    return State(int(whole["saved_ns"]), alerts, [Message(**one) for one in whole["messages"]])


def _alert(one: dict[str, Any]) -> Alert:
    key = tuple(sorted((str(name), str(value)) for name, value in one["labels"].items()))
    return Alert(key, **{name: one[name] for name in _KEPT})


class Alerts:
    """The alerts of a service: `take` every decision, those of a replay too, then `start`; `stop` once.

    `folder`: the journal's; the state for a restart is kept there. Nothing is sent before `start`. If no channel is
    configured, nothing is kept and no thread runs. `source` names this collector in CloudEvents.
    """

    def __init__(
        self, settings: ServiceSettings, folder: Path, clock: Clock, source: str = "otel-llm-collector"
    ) -> None:
        self._clock = clock
        self._folder = folder
        self._source = source
        alerts, manager = settings.alerts, settings.alertmanager
        self._dead_letter = alerts.dead_letter or folder / DEAD_LETTERS
        self._mode = settings.files.mode
        self._lock = threading.Lock()
        kept_s = 900.0 if manager is None else manager.resolved_for_s
        self._firing = Firing(round(alerts.settle_s * 1e9), round(kept_s * 1e9))
        self._managers: list[Alertmanager] = []
        self._valid_ns = 0
        if manager is not None:
            self._valid_ns = valid_ns(manager)
            self._managers = [Alertmanager(url, manager, clock, self._render) for url in manager.urls]
        self._channels = channels_of(settings, clock, source)
        self._queues = {
            name: DurableQueue(name, clock, channel.deliver, self._settled, self._bury)
            for name, channel in self._channels.items()
        }
        self._told = [f"{WEBHOOK}{name}" for name in alerts.receivers]
        self._told += [name for name in (LOG, OTLP) if name in self._channels]
        self._taken: deque[Step] = deque()
        self._beginning = 0
        """How many alerts begin by these steps."""
        self._handed: deque[Message] = deque()
        self._changed = threading.Condition()
        self._woken = False
        self._dirty = False
        self._stopping = False
        self._unwritten = 0
        self._saved_ns = clock.now_ns()
        self._thread: threading.Thread | None = None

    @property
    def sends(self) -> bool:
        """Return whether alerts go anywhere besides the records; if not, the outcome of an alert is `done`."""
        return bool(self._managers or self._told)

    def take(self, decision: Decision) -> Decision:
        """Note what fires; return the decision with what becomes of its alert. Never waits and raises nothing.

        `queued`: a receiver is away or behind, or sending has not begun. Call it in one thread.
        """
        if not self.sends or (decision.state == "firing" and decision.action != "alert"):
            return decision
        try:
            step = self._firing.places.take(decision)
        except Exception:  # noqa: BLE001  a bug of ours: the others count
            _log.exception("otel-llm: no alert could be made of a decision of %s", decision.rule)
            return replace(decision, outcome="failed")
        self._taken.append(step)
        self._beginning += step.begins
        if self._thread is not None:
            self._wake()
        elif len(self._taken) >= _REPLAYED_AT_ONCE:  # a replay: waiting does no harm, and there may be many
            with self._lock:
                self._drain()
        if step.refused:
            return replace(decision, outcome=TABLE_FULL)
        return decision if step.joins is None else replace(decision, outcome=self._outcome())

    def notify(self, receiver: str, message_id: str, body: bytes, about: str, tenant: str = DEFAULT_TENANT) -> bool:
        """Queue a message for a receiver of kind notification until it arrives; return whether the receiver exists.

        Never waits and raises nothing. Messages about the same thing arrive in their order.
        """
        channel = f"{WEBHOOK}{receiver}"
        if channel not in self._queues:
            return False
        now_ns = self._clock.now_ns()
        text = body.decode("utf-8", "replace")
        self._handed.append(Message(message_id, channel, about, text, now_ns, now_ns, tenant=tenant))
        self._wake()
        return True

    def start(self) -> None:
        """Go on where the run before stopped, and begin to send."""
        if not self._managers and not self._queues:
            return
        state = read_state(self._folder)
        with self._lock:
            self._drain()
            self._firing.begin(state.alerts, state.saved_ns, self._clock.now_ns())
        for message in state.messages:
            queue = self._queues.get(message.to)
            if queue is None:
                self._bury(message, f"{message.to} is not configured any more")
            else:
                queue.offer([message])
        for queue in self._queues.values():
            queue.start()
        for manager in self._managers:
            manager.start()
        self._dirty = True
        self._thread = threading.Thread(target=self._run, name="otel-llm-alerts", daemon=True)
        self._thread.start()

    def stop(self, grace_s: float) -> None:
        """Send what is due within the grace, and stop. What fires goes on firing: the next run takes it up."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is None:
            return
        until_s = monotonic_s() + grace_s
        self._thread.join(grace_s)
        for queue in self._queues.values():
            queue.stop(max(0.0, until_s - monotonic_s()))
        for manager in self._managers:
            manager.stop(max(0.0, until_s - monotonic_s()))
        close(self._channels.values())
        self._save()

    def check(self) -> None:
        """End what has settled, save what is to be sent, then hand it to the channels."""
        with self._changed:
            dirty, self._dirty = self._dirty, False
        now_ns = self._clock.now_ns()
        with self._lock:
            self._drain()
            events = self._firing.poll(now_ns)
            messages = [message for event in events for message in self._messages(event, now_ns)]
        while self._handed:
            messages.append(self._handed.popleft())
        if dirty or events or messages:  # which members join or leave, the journal tells
            self._save(messages)
        for channel, queue in self._queues.items():
            mine = [message for message in messages if message.to == channel]
            if mine:
                queue.offer(mine)
        for manager in self._managers:
            manager.wake()

    def counts(self) -> dict[str, int]:
        """Return the counts of alerts and messages by result, under the keys of the collector's own metrics."""
        with self._lock:
            firing = sum(alert.ends_ns is None for alert in self._firing.alerts())
        places = self._firing.places
        sent = [manager.counts for manager in self._managers]
        counts = [queue.counts for queue in self._queues.values()]
        return {
            "alerts_firing": firing,
            "alerts_left_out": places.left_out,
            "gave_way.alerts": places.gave_way,
            "alerts_unwritten": self._unwritten,
            "alertmanager_sent": sum(one.sent for one in sent),
            "alertmanager_refused": sum(one.refused for one in sent),
            "alertmanager_failures": sum(one.failures for one in sent),
            "notifications_waiting": sum(len(queue.waiting()) for queue in self._queues.values()),
            "notifications_sent": sum(one.sent for one in counts),
            "notifications_retries": sum(one.retries for one in counts),
            "notifications_given_up": sum(one.given_up for one in counts),
        }

    def _outcome(self) -> Outcome:
        """Return what becomes of an alert that has its place."""
        behind = any(one.is_behind for one in self._managers) or any(self._queues[one].is_behind for one in self._told)
        return "queued" if behind or self._thread is None or self._beginning > BACKLOG else "sent"

    def _run(self) -> None:
        stopping = False
        while not stopping:
            with self._changed:
                self._changed.wait_for(lambda: self._woken or self._dirty or self._stopping, self._until_s())
                self._changed.wait_for(lambda: self._stopping, LINGER_S)
                self._woken = False
                stopping = self._stopping
            try:
                self.check()
            except Exception:  # noqa: BLE001  a bug of ours: the alerts stay, the next round may succeed
                _log.exception("otel-llm: alerts could not be updated")

    def _until_s(self) -> float:
        with self._lock:
            next_ns = self._firing.next_ns()
        return _IDLE_S if next_ns is None else min(max(0.0, (next_ns - self._clock.now_ns()) / 1e9), _IDLE_S)

    def _render(self, now_ns: int, fresh: Mapping[Key, int]) -> tuple[list[Post], set[Key]]:
        with self._lock:
            alerts = self._firing.alerts()
            due = [alert for alert in alerts if fresh.get(alert.key) != alert.version]
            posts = [Post(one.key, one.version, for_alertmanager(one, now_ns, self._valid_ns)) for one in due]
            return posts, {alert.key for alert in alerts}

    def _messages(self, event: Event, now_ns: int) -> list[Message]:
        line = line_of(event)
        about, tenant = json.dumps(event.alert.key), tenant_of(event.alert.key)
        text = json.dumps({"time": rfc3339(now_ns), **line}, separators=(",", ":"), ensure_ascii=False)
        made = []
        for channel in self._told:
            body = cloud_event_of(line, self._source, now_ns).decode() if channel.startswith(WEBHOOK) else text
            made.append(Message(line["id"], channel, about, body, now_ns, now_ns, tenant=tenant))
        return made

    def _save(self, more: list[Message] | None = None) -> None:
        waiting = [message for queue in self._queues.values() for message in queue.waiting()]
        with self._lock:
            state = State(self._saved_ns, self._firing.alerts(), [*waiting, *(more or ())])
            data = state_bytes(state)
        try:
            write_state(self._folder, data)
        except OSError as error:
            if not self._unwritten:
                _log.warning("otel-llm: the state of alerts cannot be written (%s): a restart may send twice", error)
            self._unwritten += 1

    def _settled(self) -> None:
        with self._changed:
            self._dirty = True
            self._changed.notify_all()

    def _bury(self, message: Message, reason: str) -> None:
        try:
            bury(self._dead_letter, message, reason, self._clock.now_ns(), self._mode)
        except OSError as error:
            _log.error("otel-llm: %s: %s: message %s is lost", self._dead_letter, error.strerror, message.id)
            self._unwritten += 1

    def _drain(self) -> None:
        """Apply the steps that were taken; the lock is held."""
        self._beginning = 0
        self._saved_ns = self._clock.now_ns()  # decisions from here on may not be covered
        while self._taken:
            step = self._taken.popleft()
            try:
                self._firing.apply(step)
            except Exception:  # noqa: BLE001  a bug of ours: the others count
                _log.exception("otel-llm: no alert could be made of a decision of %s", step.decision.rule)

    def _wake(self) -> None:
        if self._woken:
            return
        with self._changed:
            self._woken = True
            self._changed.notify_all()
