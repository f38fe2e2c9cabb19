"""A relay's rules on a fake clock: streams that begin and get tokens, an actor by script, and the records."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.relay.fake_loop import run

from otel_llm.actions.settings import ServiceSettings
from otel_llm.actions.sinks.console import Console
from otel_llm.evaluate.own_streams.own_stream import Identity, OwnStream
from otel_llm.formats.records import RequestKey
from otel_llm.live.user_metrics import UserMetrics
from otel_llm.relay.deciding.command import Command
from otel_llm.relay.deciding.decision_loop import DecisionLoop
from otel_llm.relay.deciding.own_actions import Complete
from otel_llm.rules.decisions.files import DecisionFiles
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.shared.clock import FakeClock
from otel_llm.slo.classes import SloClass, SloClasses
from otel_llm.slo.token_events import TokenEvents

MS = 1_000_000
CLASSES = SloClasses((SloClass(name="chat"),), default="chat")
STALLED = "gap_seconds > 0.3"
MIGRATE = "migrate: {to: least_load}"


@dataclass
class Scripted:
    """An actor that notes what it is asked for, and completes at once, later, or when the test does."""

    clock: FakeClock
    answers: list[tuple[str, str, Mapping[str, Any]] | Exception] = field(default_factory=list)
    asked: list[tuple[int, str, object]] = field(default_factory=list)
    completes: list[Complete] = field(default_factory=list)
    pausable: bool = True

    def migrate(self, command: Command, complete: Complete) -> None:
        self._act("migrate", command.request, complete)

    def may_pause(self, key: RequestKey) -> bool:
        return self.pausable

    def preempt(self, command: Command, complete: Complete) -> None:
        self._act("preempt", command.candidates, complete)

    def abort(self, command: Command, complete: Complete) -> None:
        self._act("abort", command.request, complete)

    def drain(self, command: Command, complete: Complete) -> None:
        self._act("drain", command.instance, complete)

    def _act(self, verb: str, about: object, complete: Complete) -> None:
        self.asked.append((self.clock.at_ns, verb, about))
        self.completes.append(complete)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            complete(*answer)


def rules(folder: Path, *actions: str, when: str = STALLED, scope: str = "stream", more: Sequence[str] = ()) -> RuleSet:
    """Load one rule that enforces actions, each a verb with its arguments and perhaps more keys."""
    lines = [
        "version: 1",
        "groups:",
        "- name: g",
        f"  scope: {scope}",
        "  rules:",
        "  - rule: R",
        f"    when: '{when}'",
    ]
    lines += [f"    {line}" for line in more] + ["    actions:"]
    for action in actions:
        verb, *keys = action.split("; ")
        lines += [f"    - {verb}", *(f"      {one}" for one in keys)]
        if not any(one.startswith("mode:") for one in keys):
            lines.append("      mode: enforce")
    path = folder / "rules.yaml"
    path.write_text("\n".join(lines))
    return load_rules([path], {"migrate", "abort", "drain", "preempt", "webhook", "scale"})


@dataclass
class Relay:
    """A decision loop on a fake clock, with its actor and what it wrote."""

    folder: Path
    rules: RuleSet
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    clock: FakeClock = field(default_factory=FakeClock)
    reported: list[str] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.actor = Scripted(self.clock)
        self.began_ns = self.clock.at_ns

    def play(self, script: Callable[[], Awaitable[None]], files: Any = None) -> list[dict[str, Any]]:
        """Run a script in the loop; return the records."""
        path = self.folder / "decisions.jsonl"

        async def main() -> None:
            self.loop = DecisionLoop(
                CLASSES,
                self.rules,
                clock=self.clock,
                console=Console(self.reported.append, "all"),
                metrics=UserMetrics(),
                settings=self.settings,
                folder=self.folder,
                source="/otel-llm/relay/test",
                decisions=DecisionFiles(path) if files is None else files,
            )
            advance = self.loop.first_hand.advance

            def noted(now_ns: int) -> None:
                self.evaluations.append(now_ns - self.began_ns)
                advance(now_ns)

            self.loop.first_hand.advance = noted  # type: ignore[method-assign]
            self.loop.start(self.actor)
            await script()
            await self.loop.stop(1.0)

        run(self.clock, main())
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def begin(self, number: int = 1, choice: int = 0, instance: str = "a", tokens: int = 1) -> OwnStream:
        """Begin a stream with tokens."""
        now_ns = self.clock.at_ns
        key = (number.to_bytes(16, "big"), number.to_bytes(8, "big"), "default", choice)
        stream = self.loop.first_hand.begin(key, now_ns, Identity(model="m", instance=instance), now_ns)
        if tokens:
            self.loop.first_hand.tokens(stream, TokenEvents([now_ns] * tokens), now_ns)
        self.loop.rearm()
        return stream

    def token(self, stream: OwnStream) -> None:
        self.loop.first_hand.tokens(stream, TokenEvents([self.clock.at_ns]), self.clock.at_ns)
        self.loop.rearm()

    def end(self, stream: OwnStream, outcome: str = "completed") -> None:
        self.loop.first_hand.end(stream, self.clock.at_ns, outcome, self.clock.at_ns)
        self.loop.rearm()

    def asked_ms(self) -> list[tuple[float, str]]:
        return [(round((at_ns - self.began_ns) / MS, 3), verb) for at_ns, verb, _ in self.actor.asked]


def outcomes(records: list[dict[str, Any]]) -> list[tuple[str | None, str]]:
    return [(record["action"], record["outcome"]) for record in records]


async def completed(relay: Relay) -> None:
    """Wait until threads have completed what is open; they wait by the fake clock, and for ports in real time."""
    for _ in range(1000):
        if not relay.loop.counts()["actions_open"]:
            return
        await asyncio.to_thread(time.sleep, 0.005)
        await asyncio.sleep(0.005)
    raise AssertionError("actions are open still")


MOVED = {
    "from": "a",
    "to": "b",
    "tokens_carried": 7,
    "gap_seconds": 0.4,
    "candidates": [{"instance": "b", "score": {"tokens": 3.0}, "reason": "fewest tokens"}],
}
