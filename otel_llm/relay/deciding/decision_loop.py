"""Rules on the relay's own streams, in its event loop: evaluated when something falls due, then acted on.

The recorder passes stream events to `first_hand`, and calls `rearm` after each. One timer of the loop stands for the
next instant at which a rule can decide something: nothing polls, and nothing here blocks.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from otel_llm.actions.alerts.alerts import Alerts
from otel_llm.actions.execute.circuit_breaker import CIRCUIT_OPEN
from otel_llm.actions.execute.dispatcher import ActionDispatcher
from otel_llm.actions.execute.executors import Executors, executors
from otel_llm.actions.sinks.action_context import ActionContext
from otel_llm.actions.sinks.in_flight import gauges_in_flight, streams_in_flight
from otel_llm.actions.sinks.live_state import followed_stream, live_state
from otel_llm.actions.sinks.sinks import Sinks
from otel_llm.config.otlp_target import user_agent
from otel_llm.evaluate.own_streams.first_hand import FirstHand
from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.live.selection import Selection
from otel_llm.relay.deciding.own_actions import OwnActions
from otel_llm.relay.deciding.record_writer import RecordWriter
from otel_llm.relay.deciding.standing import StandingMigrations
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.semconv import MAX_CHOICES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from prometheus_client.core import Metric

    from otel_llm.actions.execute.open_actions import Completion
    from otel_llm.actions.settings import ServiceSettings
    from otel_llm.actions.sinks.console import Console
    from otel_llm.actions.sinks.sinks import Latency, UserCounters
    from otel_llm.formats.records import RequestKey, StreamKey
    from otel_llm.live.feed import Collected
    from otel_llm.live.selection import Filter
    from otel_llm.relay.deciding.command import Command
    from otel_llm.relay.deciding.own_actions import Actor
    from otel_llm.rules.decisions.files import DecisionFiles
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.shared.clock import Clock
    from otel_llm.slo.classes import SloClasses

EVERY: Final = Selection()
More: TypeAlias = "Callable[[RequestKey], Mapping[str, Any]]"

LATE_NS: Final = 50_000_000
"""A timer that is so late lets what has arrived be read first, once."""
READ_FIRST_S: Final = 0.01
PAUSE_AFTER_BUG_S: Final = 1.0
"""The pause of timers after one hit a bug of ours: it may be due again at once."""
log = logging.getLogger(__name__)


def _nothing(_request: RequestKey) -> Mapping[str, Any]:
    """Return no further fields."""
    return {}


class DecisionLoop:
    """The evaluation of rules on the streams of `first_hand`; single-threaded, in the loop.

    `clock` counts as the loop's does, in unix ns, and is the recorder's too. `console`: its echo must not block.
    `folder`: the state of alerts for a restart, if any are configured. `source` names this relay in CloudEvents.
    """

    def __init__(
        self,
        classes: SloClasses,
        rules: RuleSet,
        *,
        clock: Clock,
        console: Console,
        metrics: UserCounters,
        settings: ServiceSettings,
        folder: Path,
        source: str,
        decisions: DecisionFiles | None = None,
        latency: Latency | None = None,
    ) -> None:
        self.clock = clock
        self.alerts = Alerts(settings, folder, clock, source)
        self.sinks = Sinks(clock, console, metrics, None, alerts=self.alerts, latency=latency)
        self._writer = None if decisions is None else RecordWriter(decisions, self._not_written)
        self.sinks.decisions = self._writer
        self.first_hand = FirstHand(classes, RuleEngine(rules), self.sinks)
        self.sinks.groups_in_flight = lambda: {one.group for one in self.first_hand.streams.values()}
        self.internal_errors = 0
        self._settings = settings
        self._dispatcher: ActionDispatcher | None = None
        if executors(settings):
            found = Executors(settings, source, user_agent(), self.alerts.notify)
            acting = settings.actions
            self._dispatcher = ActionDispatcher(clock.now_ns, found.find, acting.kill_switch, acting.wedge_timeout_s)
        self._actions: OwnActions | None = None
        self._standing: StandingMigrations | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns: int | None = None
        self._stopped = False

    def start(self, actor: Actor) -> None:
        """Begin to evaluate, in the running loop; `actor` does the relay's own actions."""
        self._loop = asyncio.get_running_loop()
        self.sinks.context = ActionContext.of_first_hand(self.first_hand, lambda key: actor.may_pause(key[:3]))
        acting = self._settings.actions
        self._actions = self.sinks.dispatcher = OwnActions(
            actor,
            self.clock,
            others=self._dispatcher,
            kill_switch=acting.kill_switch,
            wedge_timeout_s=acting.wedge_timeout_s,
        )
        self._actions.standing = self._standing = StandingMigrations(
            self.clock, self.first_hand, self.sinks.context.order, self._actions.take, self.sinks.record
        )
        self.sinks.later = self._later
        self.alerts.start()
        if self._dispatcher is not None:
            self._dispatcher.start()
        self.rearm()

    def victims(self, instance: str, request: RequestKey | None) -> list[RequestKey]:
        """Return the streams that a `preempt` may take on an instance, first choice first; `request`: the one to help.

        None for a request that has ended: its priority is no longer known, and it needs no help.
        """
        if self.sinks.context is None:
            return []
        own: StreamKey | None = None
        if request is not None:
            choices = ((*request, choice) for choice in range(MAX_CHOICES))
            own = next((key for key in choices if key in self.first_hand.streams), None)
            if own is None:
                return []
        found = self.sinks.context.victims(instance, DEFAULT_TENANT, own, self.clock.now_ns())
        return [one.key[:3] for one in found]

    def rearm(self) -> None:
        """Set the timer for what falls due next; O(1) if that is no earlier than before."""
        due_ns = self.first_hand.next_timer()
        if self._loop is None or self._stopped or due_ns is None:
            return
        if self._armed_ns is not None and self._armed_ns <= due_ns:
            return  # waking too early is cheaper than a new timer with every token
        self._arm(due_ns, max(0, due_ns - self.clock.now_ns()) / 1e9)

    def reload(self, classes: SloClasses, rules: RuleSet) -> None:
        """Judge by these classes and decide by these rules from now on, for streams in flight too."""
        self.first_hand.reload(classes, rules, self.clock.now_ns())
        self.wake()
        self.rearm()

    def wake(self) -> None:
        """Evaluate the migrations that wait: something that stood in their way may be gone."""
        if self._standing is not None:
            self._standing.wake()

    def do(self, command: Command, completed: Callable[[Completion], None]) -> None:
        """Do a command of another process, after `start`; see `OwnActions.do`."""
        assert self._actions is not None  # noqa: S101
        self._actions.do(command, completed)

    async def stop(self, grace_s: float) -> None:
        """Stop evaluating; wait for open actions, record their results, and close the files."""
        if self._timer is not None:
            self._timer.cancel()
        self._stopped = True
        if self._actions is not None:
            await self._actions.stop(grace_s / 2)
        self._guard(self.sinks.tick)
        await asyncio.to_thread(self._close, grace_s / 2)
        self._loop = None

    # For the web port.

    def families(self, now_ns: int) -> Iterator[Metric]:
        """Yield the metrics of readers and of rules, as of now.

        The families of readers are made lazily, which any thread may do.
        """
        self._guard(lambda: self.first_hand.advance(now_ns))
        sinks = self.sinks
        self._guard(lambda: sinks.tick(now_ns))
        gauges = gauges_in_flight(self.first_hand.table, self.first_hand.meter, sinks, now_ns)
        latency = () if sinks.latency is None else sinks.latency.families()
        self.rearm()
        outcomes = {} if self._actions is None else self._actions.outcomes
        return chain(sinks.metrics.families(), gauges, list(rule_families(self.counts(), outcomes)), list(latency))

    def streams(self, now_ns: int, more: More = _nothing, selection: Selection = EVERY) -> dict[str, Any]:
        """Return the selected streams in flight, in their order, and the last verdicts and decisions.

        `more`: returns further fields for the rows of a request's streams.
        """
        first_hand = self.first_hand
        found = streams_in_flight(first_hand.table, self.sinks, now_ns, selection.filter)
        for row in found["streams"]:
            row.update(more((bytes.fromhex(row["trace_id"]), bytes.fromhex(row["span_id"]), row["tenant"])))
        if (key := selection.stream) is not None:
            found["followed"] = followed_stream(first_hand, first_hand.streams, key, now_ns, lambda one: more(one[:3]))
        return {**found, "judged": self.first_hand.counts["judged"]}

    def live(self, filters: Collection[Filter], followed: Collection[StreamKey], more: More = _nothing) -> Collected:
        """Return the state for the live page; see `live_state`. `more` as for `streams`."""
        now_ns = self.clock.now_ns()
        self._guard(lambda: self.first_hand.advance(now_ns))
        first_hand = self.first_hand
        found = live_state(
            first_hand, first_hand.streams, self.sinks, now_ns, filters, followed, lambda key: more(key[:3])
        )
        self.rearm()
        return found

    def counts(self) -> dict[str, int]:
        """Return counts by name: of streams, decisions, actions and alerts."""
        return {
            **self.first_hand.counts,
            **({} if self._actions is None else self._actions.counts()),
            **self.alerts.counts(),
            **{f"gave_way.{table}": number for table, number in self.sinks.metrics.gave_way.items()},
            "decisions": self.sinks.decided_count,
            "migrations_standing": 0 if self._standing is None else len(self._standing),
            "decisions_left_out": self.sinks.limits.decisions_left_out,
            "verdicts_left_out": self.sinks.limits.verdicts_left_out,
            "unwritten": self.sinks.unwritten,
            "internal_errors": self.internal_errors,
            "in_flight": len(self.first_hand.streams),
        }

    # Internals.

    def _arm(self, due_ns: int, delay_s: float) -> None:
        assert self._loop is not None  # noqa: S101
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ns = due_ns
        self._timer = self._loop.call_at(self._loop.time() + delay_s, self._on_timer)

    def _on_timer(self) -> None:
        now_ns = self.clock.now_ns()
        if self._armed_ns is not None and now_ns - self._armed_ns > LATE_NS:
            # The process stood still, and tokens wait to be read that came in time: without them every rule would fire.
            self._arm(now_ns, READ_FIRST_S)
            return
        self._timer = self._armed_ns = None
        self._guard(lambda: self.sinks.tick(now_ns))
        if self._guard(lambda: self.first_hand.advance(now_ns)):
            self.rearm()
        else:
            self._arm(now_ns, PAUSE_AFTER_BUG_S)

    def _not_written(self, problem: OSError | ValueError) -> None:
        """Count a record that could not be written; called in the writer's thread."""
        self._later(lambda: self.sinks.not_written("decisions", problem))

    def _later(self, step: Callable[[], None]) -> None:
        """Run a step in the loop; thread-safe."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(step)

    def _guard(self, step: Callable[[], None]) -> bool:
        """Run a step, and survive a bug of ours: the first is logged with its traceback, each is counted."""
        try:
            step()
        except Exception:  # a bug of ours must not stop the streams
            if not self.internal_errors:
                log.exception("otel-llm: rules could not be evaluated")
            self.internal_errors += 1
            return False
        return True

    def _close(self, grace_s: float) -> None:
        self.alerts.stop(grace_s)
        if self._writer is not None:
            self._writer.close()


_COUNTERS: Final = (
    ("decisions", "Decisions of rules."),
    ("decisions_left_out", "Those in shadow without a record or line: too many of one rule and tenant."),
    ("verdicts_left_out", "Verdicts without a line on the console: too many of one tenant."),
    ("unwritten", "Decision records that could not be written."),
    ("judged", "Streams judged."),
    ("skewed_tokens", "Tokens recorded before the commit."),
    ("unknown_slo_class", "Streams that name a class that is not there."),
    ("folded_groups", "Instances and classes that rules know as `other`."),
    ("internal_errors", "Evaluations of rules that hit a bug."),
)


def rule_families(counts: Mapping[str, int], outcomes: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the metrics of rules and actions; `counts`: of `DecisionLoop.counts`, `outcomes`: completed actions."""
    for name, words in _COUNTERS:
        family = CounterMetricFamily(f"otel_llm_relay_{name}", words)
        family.add_metric((), counts.get(name, 0))
        yield family
    done = CounterMetricFamily("otel_llm_relay_actions", "Enforced actions completed, by outcome.", labels=["outcome"])
    for outcome, number in sorted(outcomes.items()):
        done.add_metric([outcome], number)
    yield done
    gone = CounterMetricFamily("otel_llm_relay_gave_way", "Entries that gave way in a full table.", labels=["table"])
    for name in sorted(name for name in counts if name.startswith("gave_way.")):
        gone.add_metric([name.partition(".")[2]], counts[name])
    yield gone
    flying = GaugeMetricFamily("otel_llm_relay_actions_open", "Enforced actions that are not completed.")
    flying.add_metric((), counts.get("actions_open", 0))
    yield flying
    circuits = GaugeMetricFamily(
        "otel_llm_relay_action_circuit_open",
        "1 while no actions are sent to a receiver, which did not answer in time, else 0.",
        labels=["target"],
    )
    for name in sorted(name for name in counts if name.startswith(CIRCUIT_OPEN)):
        circuits.add_metric([name.removeprefix(CIRCUIT_OPEN)], counts[name])
    yield circuits
