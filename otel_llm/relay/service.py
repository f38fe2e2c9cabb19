"""The relay's service: its parts are started in an order in which nothing is lost, and stopped in reverse. One loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from otel_llm.actions.execute.action_receiver import Admission
from otel_llm.config.errors import StartError
from otel_llm.config.secret_files import read_signing_secrets
from otel_llm.config.tls import Certificates
from otel_llm.export.endpoints import EndpointsError, listed_settings
from otel_llm.live.user_metrics import UserMetrics
from otel_llm.relay.answers import NONE_OPEN
from otel_llm.relay.backends.backend import Backend
from otel_llm.relay.backends.backends import Backends
from otel_llm.relay.backends.expected_lengths import ExpectedLengths
from otel_llm.relay.backends.health import Probes
from otel_llm.relay.backends.hedge_budget import HedgeBudget
from otel_llm.relay.backends.pool import Pool
from otel_llm.relay.backends.upstream import Upstream
from otel_llm.relay.command_receiver import CommandReceiver
from otel_llm.relay.deciding.command_reader import CommandReader
from otel_llm.relay.deciding.decision_loop import DecisionLoop
from otel_llm.relay.loop_lag import LoopLag
from otel_llm.relay.metrics import RelayMetrics
from otel_llm.relay.passing import Passing
from otel_llm.relay.paths import Passthrough
from otel_llm.relay.queueing.polyserve_placer import PolyServePlacer
from otel_llm.relay.queueing.request_queue import RequestQueue
from otel_llm.relay.recording.recorder import Recorder, relay_runtime
from otel_llm.relay.server import ClientServer
from otel_llm.relay.splice.large_body import load_kernels
from otel_llm.relay.streams.owned import Owned
from otel_llm.relay.web_port import WebPort, WebServer
from otel_llm.rules.decisions.decision_records import FIRST_KEY
from otel_llm.rules.decisions.files import DecisionFiles
from otel_llm.rules.decisions.line_files import refuse_other_lines
from otel_llm.scheduling.placement import POLYSERVE
from otel_llm.shared.clock import MonotonicClock, monotonic_ns, monotonic_s
from otel_llm.shared.reloading import Reloader
from otel_llm.shared.web.address import Address, listen
from otel_llm.shared.web.exposure import exposure
from otel_llm.shared.web.guard import Guard, is_loopback, names_of
from otel_llm.shared.web.tokens import KnownTokens, Tokens

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from opentelemetry.sdk.trace.export import SpanExporter
    from prometheus_client.core import Metric

    from otel_llm.actions.sinks.console import Console
    from otel_llm.formats.records import StreamKey
    from otel_llm.live.feed import Collected
    from otel_llm.live.selection import Filter, Selection
    from otel_llm.relay.settings import RelaySettings
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.slo.classes import SloClasses

CUT_S: Final = 1.0
"""How long streams that are cut at the end have to send their last event."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Service:
    """One relay: `prepare`, then `run` in an event loop until `stop` is set; each once."""

    classes: SloClasses
    rules: RuleSet
    settings: RelaySettings
    decisions_path: Path | None
    folder: Path
    """The folder with the alerts' state for a restart, if any are configured."""
    at: Address
    web_at: Address
    console: Console
    load: Callable[[], tuple[SloClasses, RuleSet]]
    """Reads the class and rule files anew; raises ConfigError."""
    exporter: SpanExporter | None = None
    """The exporter of spans; None: by `OTEL_EXPORTER_OTLP_*` and `OTEL_LLM_ENDPOINTS`."""
    name: str = field(default_factory=lambda: f"/otel-llm/relay/{uuid.uuid4()}")
    """The name of this relay and start-up."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once clients are accepted."""
    clean: bool = True
    owned: Owned | None = None
    """The streams that it owns; None until it runs."""
    pool: Pool | None = None
    """The backends; None until it runs."""
    _listener: socket.socket | None = None
    _web_listener: socket.socket | None = None
    _certificates: Certificates | None = None
    _tokens: Tokens | None = None
    _operators: KnownTokens | None = None
    """Those who read the web port and drain; with `auth` and no file of theirs there are none."""
    _admission: Admission | None = None
    _decisions: DecisionFiles | None = None
    _stopping: bool = False
    _queue: RequestQueue | None = None
    _decide: DecisionLoop | None = None
    _server: ClientServer | None = None

    def prepare(self) -> None:
        """Open the ports and the files, without accepting clients. Raises StartError or ConfigError."""
        if self.exporter is None:
            try:
                listed_settings()
            except EndpointsError as problem:
                raise StartError(str(problem)) from problem
        settings = self.settings
        if settings.placement == POLYSERVE and not _token_times_ns(self.classes):
            raise StartError(
                "placement polyserve makes tiers of the times a token that classes promise, and none promises one: "
                "give a class of --slo a deadline of another policy than e2e, or choose another placement"
            )
        self._certificates = None if settings.tls is None else Certificates(settings.tls)
        if settings.auth is not None:
            self._tokens = Tokens(settings.auth.tokens_file)
            operators = settings.operators
            self._operators = KnownTokens() if operators is None else Tokens(operators.tokens_file)
        if settings.actions.secret_file is not None:
            self._admission = Admission(read_signing_secrets(settings.actions.secret_file), relay=self.name)
        if self.decisions_path is not None:
            try:
                refuse_other_lines(self.decisions_path, FIRST_KEY, "decisions")
                kept = settings.decisions
                self._decisions = DecisionFiles(
                    self.decisions_path, kept.file_bytes, kept.retain_bytes, settings.files.mode
                )
            except OSError as problem:
                raise StartError(f"{problem.filename}: {problem.strerror}: choose another file") from problem
        self._listener = listen(self.at, "--listen")
        try:
            self._web_listener = listen(self.web_at, "--web")
        except StartError:
            self._listener.close()
            raise

    def listening(self) -> str:
        """Return one line on the listening ports."""
        assert self._listener is not None  # noqa: S101
        assert self._web_listener is not None  # noqa: S101
        scheme = "http" if self.settings.tls is None else "https"
        web_scheme = "http" if self._web_context() is None else "https"
        names = ", ".join(f"{one.name} ({one.kind}, {one.url})" for one in self.settings.backends.values())
        at, web_at = _bound(self._listener), _bound(self._web_listener)
        return f"relaying {scheme}://{at} to {names}; page and metrics on {web_scheme}://{web_at}"

    def judging(self) -> str:
        """Return a line on the classes and rules in use."""
        shadow = " (in shadow)" if self.rules.shadow else ""
        return f"classes: {', '.join(self.classes.names)}; rules: {len(self.rules.rules)}{shadow}"

    def warnings(self) -> list[str]:
        """Return warnings on ports open to other machines, and on secret files that other users can read."""
        settings = self.settings
        ports = (("--listen", self.at), ("--web", self.web_at))
        found = exposure(ports, settings.tls, settings.auth, settings.secret_files(), "docs/relay.md")
        if settings.auth is not None and settings.operators is None:
            found.append("no token drains a backend here or opens a closed web port (see operators): docs/relay.md")
        return found

    async def run(self) -> None:
        """Serve until `stop` is set, then let streams end within the drain time."""
        settings = self.settings
        loop = asyncio.get_running_loop()
        clock = MonotonicClock()
        labels = settings.metrics
        decide = self._decide = DecisionLoop(
            self.classes,
            self.rules,
            clock=clock,
            console=self.console,
            metrics=UserMetrics(
                by_instance=labels.instance_label,
                models=None if labels.models is None else frozenset(labels.models),
                instances=None if labels.instances is None else frozenset(labels.instances),
                max_bytes=settings.limits.metrics_bytes,
            ),
            settings=settings,
            folder=self.folder,
            source=self.name,
            decisions=self._decisions,
        )
        backends = Backends(
            [
                Backend(one.name, one.url, one.kind, one.group, profile=one.profile)
                for one in settings.backends.values()
            ],
            monotonic_s,
            settings.eject.for_s,
            settings.eject.max_share,
        )
        metrics = RelayMetrics()
        lag = LoopLag(metrics.lagged)
        pool = self.pool = Pool(
            Upstream(settings.backends),
            backends,
            settings,
            metrics,
            ExpectedLengths(),
            lag,
            HedgeBudget(settings.failover.hedge_share),
        )
        running = relay_runtime(self.exporter)
        recorder = Recorder(running, decide.first_hand, clock, loop.call_later, decide.rearm)
        without = () if self._tokens is None else ("authorization",)
        queue = self._queue = self._queue_of(pool)
        owned = self.owned = Owned(pool, recorder, without, queue)
        owned.victims = decide.victims
        backends.starving = owned.starving

        def changed() -> None:
            owned.refresh()
            decide.wake()

        backends.watched_by(changed, None if queue is None else queue.release)
        probes = Probes(pool)
        server = self._server = ClientServer(
            settings.limits,
            Passing(pool),
            owned,
            self._tokens,
            {} if settings.auth is None else {name: frozenset(some) for name, some in settings.auth.classes.items()},
            pool.metrics.request,
            Passthrough(settings.passthrough),
            frozenset(settings.cors.origins),
        )
        receiver = self._receiver(pool, recorder, decide)
        page = WebServer(self._web_port(pool, receiver), settings.limits)
        warming: asyncio.Task[None] | None = None
        try:
            lag.start()
            decide.start(owned)
            await probes.start()
            gc.freeze()
            assert self._listener is not None  # noqa: S101
            assert self._web_listener is not None  # noqa: S101
            await page.start(self._web_listener, self._web_context())
            server.listen(self._listener, self._certificates)
            self.started.set()
            warming = loop.create_task(_warm())
            await self.stop.wait()
            self._stopping = True
            # Both ports and the file of decisions at once: another relay may start on them while streams end here.
            await server.close_listeners()
            await page.close_listener()
            self._listener.close()
            self._web_listener.close()
            if self._decisions is not None:
                self._decisions.share()
            self.clean = await server.drained(settings.limits.drain_s)
            if not self.clean:
                owned.cut_all()
                await server.drained(CUT_S)
        finally:
            if warming is not None:
                warming.cancel()
            await server.shutdown(CUT_S)
            lag.stop()
            await probes.stop()
            if queue is not None:
                queue.close()
            await decide.stop(CUT_S)
            await page.stop()
            await server.close_listeners()
            for listener in (self._listener, self._web_listener):
                if listener is not None:
                    listener.close()
            await pool.upstream.close()
            await asyncio.to_thread(running.stop, CUT_S)

    def reload(self) -> tuple[str | None, list[str]]:
        """Read classes, rules, secrets and certificates anew; return a line on them, and one on each failure."""
        kinds: list[tuple[str, Callable[[], str]]] = [("classes and rules", self._reload_rules)]
        if (tokens := self._tokens) is not None:
            kinds.append(("tokens", lambda: str(tokens.reload())))
        if isinstance(operators := self._operators, Tokens):
            kinds.append(("tokens of operators", lambda: str(operators.reload())))
        if (admission := self._admission) is not None:
            kinds.append(("secrets of actions", lambda: self._reload_secrets(admission)))
        if (pool := self.pool) is not None and any(one.api_key_file for one in self.settings.backends.values()):
            kinds.append(("keys of backends", lambda: str(pool.upstream.reload_keys())))
        if (certificates := self._certificates) is not None:
            kinds.append(("certificates", lambda: "changed" if certificates.reload() else "unchanged"))
        return Reloader(kinds).run()

    def _reload_rules(self) -> str:
        classes, rules = self.load()
        assert self._decide is not None  # noqa: S101
        self._decide.reload(classes, rules)
        self.classes, self.rules = classes, rules
        return self.judging()

    def _reload_secrets(self, admission: Admission) -> str:
        assert self.settings.actions.secret_file is not None  # noqa: S101
        admission.secrets = read_signing_secrets(self.settings.actions.secret_file)
        return str(len(admission.secrets))

    # For the web port.

    def streams(self, selection: Selection) -> dict[str, Any]:
        """Return the selected streams in flight, the last verdicts and decisions."""
        assert self._decide is not None  # noqa: S101
        assert self.owned is not None  # noqa: S101
        return self._decide.streams(self._decide.clock.now_ns(), self.owned.row, selection)

    def live(self, filters: Collection[Filter], followed: Collection[StreamKey]) -> Collected:
        """Return the state for the live page."""
        assert self._decide is not None  # noqa: S101
        assert self.owned is not None  # noqa: S101
        return self._decide.live(filters, followed, self.owned.row)

    def families(self) -> Iterable[Metric]:
        """Return all metrics; the families of readers, which are many, are made lazily."""
        assert self._decide is not None  # noqa: S101
        assert self.pool is not None  # noqa: S101
        assert self.owned is not None  # noqa: S101
        families = self._decide.families(self.now_ns())
        waiting = 0 if self._queue is None else len(self._queue)
        return chain(families, list(self.pool.metrics.families(self.pool.backends, len(self.owned.pauses), waiting)))

    @property
    def body_bytes(self) -> int:
        """Return the bytes of clients' bodies in memory."""
        return 0 if self._server is None else self._server.bodies.taken

    def now_ns(self) -> int:
        """Return the current time."""
        assert self._decide is not None  # noqa: S101
        return self._decide.clock.now_ns()

    def unready(self) -> str | None:
        """Return why no request should be sent here now."""
        assert self.pool is not None  # noqa: S101
        if self._stopping:
            return "stopping"
        return None if self.pool.backends.open_to() else NONE_OPEN

    def drained(self, name: str) -> None:
        """Move streams off a drained backend, if possible."""
        assert self.owned is not None  # noqa: S101
        self.owned.drained(name)

    def _receiver(self, pool: Pool, recorder: Recorder, decide: DecisionLoop) -> CommandReceiver | None:
        """Return the receiver of signed actions, None if the settings allow none."""
        if self._admission is None:
            return None
        reader = CommandReader(recorder.find, lambda name: name in pool.backends)
        return CommandReceiver(
            self._admission, decide.clock, reader, decide.do, lambda: self._stopping, pool.metrics.received
        )

    def _queue_of(self, pool: Pool) -> RequestQueue | None:
        """Return the queue of requests, None if the settings have none."""
        settings = self.settings
        if settings.queue is None:
            return None
        placer = None
        if settings.placement == POLYSERVE:
            placer = PolyServePlacer(pool.backends, _token_times_ns(self.classes), monotonic_ns)
        policy = settings.direct_placement
        return RequestQueue(settings.queue, policy, pool.backends, pool.metrics, monotonic_ns, placer)

    def _web_port(self, pool: Pool, receiver: CommandReceiver | None) -> WebPort:
        auth = self.settings.auth
        asks = self._operators if auth is not None and auth.web == "token" else None
        guard = Guard(names_of(self.web_at, frozenset(self.settings.web.hosts)), asks)
        actions = None if receiver is None else receiver.post
        alone = is_loopback(self.web_at.host)
        viewers = self.settings.limits.viewers
        return WebPort(self, pool.backends, guard, self._operators, alone=alone, actions=actions, most_viewers=viewers)

    def _web_context(self) -> Callable[[], ssl.SSLContext] | None:
        tls = self.settings.tls
        if tls is None or self._certificates is None or tls.web == "none":
            return None
        return self._certificates.context if tls.web == "same" else self._certificates.open_context


def _token_times_ns(classes: SloClasses) -> list[int]:
    """Return the times a token that classes promise beside a first token."""
    return [slo.token_time_ns for slo in classes.classes if slo.token_time_ns is not None]


async def _warm() -> None:
    """Load what large bodies need, and keep all that lives as long as the process out of collections of garbage.

    A collection of the kernels' objects would hold every stream for as long as ten of their tokens take.
    """
    await asyncio.to_thread(load_kernels)
    gc.freeze()


def _bound(listener: socket.socket) -> Address:
    with suppress(OSError):
        host, port = listener.getsockname()[:2]
        return Address(host, port)
    return Address("?", 0)
