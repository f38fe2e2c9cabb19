"""A recorder whose clock, flusher, timers and network are a test's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.evaluate.sinks import KeepingSink
from support.instrumentation.fake_environment import MS, OFFSET_NS, FakeEnvironment

from otel_llm import semconv
from otel_llm.audit.input.stream_batch import to_batch
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.evaluate.own_streams.first_hand import FirstHand
from otel_llm.export.wire import export_request
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.otlp.export_request import decode
from otel_llm.formats.rows import Row
from otel_llm.instrumentation.process.wall_anchor import WallAnchor
from otel_llm.relay.recording.recorded import Recorded
from otel_llm.relay.recording.recorder import Recorder
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.slo.classes import SloClass, SloClasses
from otel_llm.slo.metrics import REQUESTS

CLASSES = SloClasses((SloClass(name="chat"), SloClass(name="batch")), default="chat")
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class EngineRequest:
    """What a client asks for."""

    operation: str = "chat"
    model: str | None = "m"
    choices: int = 1


@dataclass
class Choice:
    """A choice of a chunk, as far as a recorder looks."""

    index: int
    finish: str | None = None


class Chunk:
    """A chunk, as far as a recorder looks."""

    def __init__(self, *choices: Choice, prompt_ids: list[int] | None = None, **value: Any) -> None:
        self.prompt_ids = prompt_ids
        self.value: dict[str, Any] = {"choices": [vars(choice) for choice in choices], **value}
        self.choices = choices


def stated(kind: str, characters: int) -> dict[str, Any]:
    """Return a choice of a chunk as JSON, with text of a kind and without token ids."""
    text = "x" * characters
    members = {
        "content": {"content": text},
        "reasoning": {"reasoning": text},
        "tool": {"tool_calls": [{"function": {"arguments": text}}]},
    }
    return {"delta": members[kind]}


class RelayHost(FakeEnvironment):
    """A fake process, with what the runtime of a relay has beside."""

    slo_class: str | None = None

    def __init__(self, classes: SloClasses) -> None:
        super().__init__()
        self.slo_classes = frozenset(classes.names)
        self.refused_classes = 0
        self.step_ns = 0
        """How far the wall clock has stepped."""
        self.anchor = WallAnchor(lambda: OFFSET_NS + self.now_ns + self.step_ns)

    def refuse_class(self) -> None:
        self.refused_classes += 1


class Anchor:
    """A clock that adds `OFFSET_NS`."""

    def __init__(self, host: RelayHost) -> None:
        self._host = host

    def now_ns(self) -> int:
        return self.unix_ns(self._host.now_ns)

    def unix_ns(self, monotonic_ns: int) -> int:
        return OFFSET_NS + monotonic_ns

    def start_after(self, instant_ns: int) -> None:
        raise AssertionError(instant_ns)


class Timer:
    """A call at `at_ns`."""

    def __init__(self, at_ns: int, callback: Callable[[], None]) -> None:
        self.at_ns = at_ns
        self.callback = callback
        self.over = False

    def cancel(self) -> None:
        self.over = True


class Rig:
    """A recorder with all that it tells."""

    def __init__(self, classes: SloClasses = CLASSES) -> None:
        self.classes = classes
        self.host = RelayHost(classes)
        self.sink = KeepingSink()
        self.first_hand = FirstHand(classes, RuleEngine(RuleSet(())), self.sink)
        self.timers: list[Timer] = []
        self.rearmed = 0
        host: Any = self.host
        self.recorder = Recorder(host, self.first_hand, Anchor(self.host), self._later, self._rearm)

    def begin(self, headers: Headers | None = None, asked: EngineRequest | None = None) -> Recorded:
        return self.recorder.begin(headers or [], asked or EngineRequest(), self.host.now_ns)

    def wait(self, ms: float) -> None:
        """Let time pass, and timers fall due."""
        until_ns = self.host.now_ns + round(ms * MS)
        for timer in sorted(self.timers, key=lambda timer: timer.at_ns):
            if timer.at_ns <= until_ns and not timer.over:
                timer.over = True
                self.host.now_ns = max(self.host.now_ns, timer.at_ns)
                timer.callback()
        self.host.now_ns = until_ns

    def cut(self) -> None:
        """Let the flusher look, as its thread does at any instant."""
        self.host.step()

    def spans(self) -> list[Span]:
        """Return what was sent, as bytes and back, by the standard's own messages."""
        message = ExportTraceServiceRequest.FromString(export_request(self.host.sent))
        return [span for resource in message.resource_spans for scope in resource.scope_spans for span in scope.spans]

    def segments(self, choice: int = 0) -> list[dict[str, Any]]:
        """Return the attributes of a choice's segments."""
        found = [attributes(span) for span in self.spans() if span.name == semconv.SEGMENT_SPAN]
        return [one for one in found if one.get(semconv.CHOICE, 0) == choice]

    def request(self) -> Span:
        """Return the one request span."""
        [span] = [span for span in self.spans() if span.name != semconv.SEGMENT_SPAN]
        return span

    def audited(self) -> list[Row]:
        """Return the rows that an audit makes of what was sent."""
        assembler = Assembler()
        assembler.add(decode(ExportTraceServiceRequest.FromString(export_request(self.host.sent))))
        rows = judge_batch(to_batch(assembler.finish()), self.classes).to_pylist()
        assert not +assembler.counts
        return [{name: row[name] for name in REQUESTS} for row in rows]

    def _later(self, delay: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self.host.now_ns + round(delay * 1e9), callback)
        self.timers.append(timer)
        return timer

    def _rearm(self) -> None:
        self.rearmed += 1


def attributes(reported: Any) -> dict[str, Any]:
    """Return the attributes of a span, or of one of its events."""
    found: dict[str, Any] = {}
    for pair in reported.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = tuple(item.string_value for item in value.values) if kind == "array_value" else value
    return found
