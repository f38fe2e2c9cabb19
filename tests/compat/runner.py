"""Run one case bare and recorded against the fake of all wires, and judge what was recorded of it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.commands import environment
from support.instrumentation.one_authority import write_one_authority
from support.otlp_receiver import HttpReceiver
from support.patience import WAIT_S
from support.wires.server import Received, WireServer

from compat.environments import Environment
from compat.matrix import Case
from otel_llm import semconv

CHILD = Path(__file__).parent / "child.py"
TOKENS = 20
READ = 5
"""Pieces of text that a caller reads who leaves."""
MODELS = {
    "complete": f"tokens-{TOKENS}-pace-1ms",
    "left": f"tokens-{TOKENS}-pace-10ms",
    "cut": f"tokens-{TOKENS}-cut-10-pace-1ms",
    "error": f"tokens-{TOKENS}-error-10-pace-1ms",
    "status": "tokens-1-status-429",
}
"""The model's name of each way to end, which states the reply."""
OUTCOMES = {
    "complete": {"completed"},
    "left": {"cancelled", "abandoned"},
    "cut": {"disconnected"},
    "error": {"error"},
    "status": {"error"},
}
"""What a recording may say of its end."""


@dataclass(frozen=True)
class Stream:
    """One recorded stream, of all its choices: where it hangs, its tokens, its outcomes."""

    trace_id: str
    span_id: str
    tokens: int
    outcomes: frozenset[str]
    spans: int


@dataclass
class Verdict:
    """What one call of one mode showed.

    `sent`: the tokens of each streamed request, as the server sent them; `recorded`: what was exported. `faults` are
    the promises that were not kept, in words; none if all were.
    """

    case: str
    mode: str
    variant: str
    way: str
    sent: list[int] = field(default_factory=list)
    recorded: list[Stream] = field(default_factory=list)
    traced: bool = False
    faults: list[str] = field(default_factory=list)

    @property
    def missed(self) -> bool:
        """Return whether nothing was recorded at all."""
        return not self.recorded


class ChildError(Exception):
    """A child that ended, or did not answer in time."""


class Child:
    """A process that makes the calls of one case; a context manager."""

    def __init__(self, python: Path, script: Path, way: str, variables: Mapping[str, str]) -> None:
        command = [str(python), str(CHILD), str(script), way]
        if way == "command":
            command.insert(0, str(python.parent / "opentelemetry-instrument"))
        reading, writing = os.pipe()
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            env={**environment(), **_QUIET, **variables, "COMPAT_RESULTS": str(writing)},
            pass_fds=(writing,),
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=self._errors,
            text=True,
            cwd=tempfile.gettempdir(),
        )
        os.close(writing)
        self._results: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()
        self._limit_s = WAIT_S

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8") as results:
            for line in results:
                self._results.put(line)
        self._results.put("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._errors.close()

    def ask(self, mode: str, url: str, variant: str) -> dict[str, Any]:
        """Let one call be made; return its result. Raises `ChildError`."""
        assert self._process.stdin is not None
        stop_after = READ if variant == "left" else None
        asked = {"mode": mode, "url": url, "model": MODELS[variant], "stop_after": stop_after}
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            line = self._results.get(timeout=self._limit_s + WAIT_S)
        except (BrokenPipeError, queue.Empty) as error:
            self._process.kill()
            raise ChildError(f"{type(error).__name__}: {self.said()}") from error
        if not line:
            raise ChildError(self.said())
        self._limit_s = 0.0
        made: dict[str, Any] = json.loads(line)
        return made

    def said(self) -> str:
        """Return the end of what the process printed."""
        self._errors.seek(0)
        return self._errors.read()[-2000:]

    def warnings(self) -> list[str]:
        """Return the lines in which this project said something."""
        self._errors.seek(0)
        return [line.strip() for line in self._errors if "otel_llm" in line and "File " not in line]


_QUIET = {
    "ANONYMIZED_TELEMETRY": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "AGNO_TELEMETRY": "false",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "*",
    "OPENAI_API_KEY": "none",
}
"""Nothing leaves this machine."""


def _attributes(span: Span) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in span.attributes}


def streams_of(spans: Sequence[Span]) -> list[Stream]:
    """Return the recorded streams among exported spans: segments by the request span that they hang from."""
    segments: dict[tuple[str, str], list[Span]] = {}
    requests: Counter[tuple[str, str]] = Counter()
    for span in spans:
        if span.name == semconv.SEGMENT_SPAN:
            segments.setdefault((span.trace_id.hex(), span.parent_span_id.hex()), []).append(span)
        else:
            requests[span.trace_id.hex(), span.span_id.hex()] += 1
    streams = []
    for (trace_id, span_id), ones in segments.items():
        tokens = 0
        outcomes = set()
        for span in ones:
            outcomes.add(_attributes(span).get(semconv.OUTCOME))
            for event in span.events:
                tokens += next((one.value.int_value for one in event.attributes if one.key == semconv.TOKEN_COUNT), 1)
        streams.append(
            Stream(trace_id, span_id, tokens, frozenset(o for o in outcomes if o), requests[trace_id, span_id])
        )
    return streams


def _traced(received: Sequence[Received], streams: Sequence[Stream]) -> bool:
    """Return whether each streamed request carried the context of a recorded stream."""
    carried = {tuple(one.headers.get("traceparent", "-").split("-")[1:3]) for one in received if one.stream}
    return carried == {(stream.trace_id, stream.span_id) for stream in streams}


def judge(
    verdict: Verdict, bare: dict[str, Any], own: dict[str, Any], received: Sequence[Received], allowed: set[str]
) -> None:
    """Put into a verdict what was not as promised.

    `own` is what the caller of the recorded process got; `allowed` are the outcomes that are right.
    """
    asked = [one for one in received if one.stream]
    verdict.sent = [one.sent for one in asked]
    verdict.traced = _traced(asked, verdict.recorded)
    faults = verdict.faults
    if not asked:
        faults.append(f"no streamed request reached the server: {own['error'] or own['got'][:3]}")
        return
    for what in ("got", "returned", "error"):
        if bare.get(what) != own.get(what):
            faults.append(f"the caller's {what} differs: bare {bare.get(what)!s:.200}, recorded {own.get(what)!s:.200}")
    if verdict.missed:
        faults.append("not recorded")
        return
    if len(verdict.recorded) != len(asked):
        faults.append(f"{len(asked)} streams, {len(verdict.recorded)} recordings")
    if any(stream.spans > 1 for stream in verdict.recorded):
        faults.append("more than one request span")
    tokens = sorted(stream.tokens for stream in verdict.recorded)
    if verdict.variant == "left":
        most = sum(verdict.sent)
        if not all(READ <= count <= most for count in tokens):
            faults.append(f"tokens {tokens}, read {READ}, sent {verdict.sent}")
    elif tokens != sorted(verdict.sent):
        faults.append(f"tokens {tokens}, sent {verdict.sent}")
    outcomes = {outcome for stream in verdict.recorded for outcome in stream.outcomes}
    if verdict.variant == "left" and tokens == [TOKENS]:  # some packages read on behind a caller who leaves
        allowed = OUTCOMES["complete"]
    if not outcomes or not outcomes <= allowed:
        faults.append(f"outcome {', '.join(sorted(outcomes)) or 'none'}")
    if not verdict.traced:
        faults.append("the server saw no traceparent, or another one")


class Runner:
    """Runs cases against one fake server and one OTLP receiver; a context manager."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._server = WireServer()
        self._receiver = HttpReceiver()
        self.warnings: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        self._open.enter_context(self._server)
        self._open.enter_context(self._receiver)
        folder = self._open.enter_context(tempfile.TemporaryDirectory())
        self._variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self._receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "SSL_CERT_FILE": str(write_one_authority(Path(folder))),
        }
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._open.close()

    def run(
        self, case: Case, environment: Environment, modes: Sequence[str] = (), ways: Sequence[str] = ()
    ) -> Iterator[Verdict]:
        """Yield a verdict for each mode, variant and way of a case; `modes` and `ways`: all of its own by default."""
        calls = [(mode, variant) for mode in modes or case.modes() for variant in case.variants]
        bare = self._calls(case, environment, "bare", calls)
        for way in ways or case.ways:
            recorded = self._calls(case, environment, way, calls)
            for (mode, variant), before, after in zip(calls, bare, recorded, strict=True):
                verdict = Verdict(case.name, mode, variant, way)
                if isinstance(before, str) or isinstance(after, str):
                    verdict.faults.append(f"the process died: {before if isinstance(before, str) else after}")
                else:
                    verdict.recorded = streams_of(after.spans)
                    allowed = OUTCOMES[variant] | {case.outcomes.get(variant, "")} - {""}
                    judge(verdict, before.result, after.result, after.received, allowed)
                yield verdict

    def _calls(
        self, case: Case, environment: Environment, way: str, calls: Sequence[tuple[str, str]]
    ) -> list[_Called | str]:
        """Make the calls one after another in one process; a call after which it is gone is a text that says why."""
        made: list[_Called | str] = []
        while len(made) < len(calls):
            with Child(environment.python, case.path, way, self._variables) as child:
                for mode, variant in calls[len(made) :]:
                    self._server.received.clear()
                    seen = len(self._receiver.spans())
                    try:
                        result = child.ask(mode, self._server.url, variant)
                    except ChildError as error:
                        made.append(str(error))
                        break
                    made.append(_Called(result, list(self._server.received), self._receiver.spans()[seen:]))
                if way != "bare":
                    self.warnings.setdefault(case.name, []).extend(child.warnings())
        return made


@dataclass(frozen=True)
class _Called:
    result: dict[str, Any]
    received: list[Received]
    spans: list[Span]
