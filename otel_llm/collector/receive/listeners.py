"""The three listeners of a collector: gRPC, HTTP, web."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_llm.collector.receive.grpc_worker.parent import GrpcWorker
from otel_llm.collector.receive.http_listener import HttpServer
from otel_llm.collector.receive.otlp_http import otlp_app
from otel_llm.collector.receive.refusal_counts import RefusalCounts
from otel_llm.collector.web.app import web_app
from otel_llm.config.tls import Certificates
from otel_llm.shared.web.exposure import exposure as exposure_of
from otel_llm.shared.web.guard import Guard, names_of
from otel_llm.shared.web.tokens import Tokens

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from otel_llm.collector.receive.senders import Accept
    from otel_llm.collector.settings import Settings
    from otel_llm.collector.web.views import Web
    from otel_llm.shared.clock import Clock
    from otel_llm.shared.web.address import Address


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the listeners listen."""

    grpc: Address
    http: Address
    web: Address


class Listeners:
    """The listeners, opened and closed in an order in which no export is lost.

    Args:
        at: where they listen.
        settings: limits, tokens and certificates.
        accept: takes exports of the HTTP receiver, as in `GrpcReceiver`.
        attach: takes the gRPC worker, once its port is bound, to read exports from it.
        clock: gives receipt times.
        web: answers on the web port.
        healthy, ready: as in `web_app`.

    Raises:
        ConfigError: the tokens cannot be used.
        TlsFileError: the certificates cannot be used.
    """

    def __init__(
        self,
        at: Addresses,
        settings: Settings,
        *,
        accept: Accept,
        attach: Callable[[GrpcWorker], None],
        clock: Clock,
        web: Web,
        healthy: Callable[[], str | None],
        ready: Callable[[], str | None],
    ) -> None:
        limits = settings.limits
        self._at = at
        self._settings = settings
        auth = settings.auth
        self.tokens = None if auth is None else Tokens(auth.tokens_file)
        self._operators = None if settings.operators is None else Tokens(settings.operators.tokens_file)
        self.certificates = None if settings.tls is None else Certificates(settings.tls)
        refused = self._refused = RefusalCounts()
        self._attach = attach
        self._feed = web.feed
        self._bound = self._web_open = False
        self.grpc = GrpcWorker(at.grpc, limits=limits, tokens=self.tokens, certificates=self.certificates, clock=clock)
        accept = refused.except_of_flow(accept)
        self.http = HttpServer(
            otlp_app(
                accept, limits=limits, tokens=self.tokens, origins=frozenset(settings.cors.origins), refused=refused
            ),
            at.http,
            option="--http",
            limits=limits,
            context=None if self.certificates is None else self.certificates.context,
        )
        page = web_app(
            metrics=web.metrics,
            streams=web.streams,
            requests=web.requests,
            feed=web.feed,
            healthy=lambda: healthy() or self.grpc.why_unhealthy(),
            ready=lambda: ready() or self.grpc.why_unhealthy(),
            guard=Guard(
                names_of(at.web, frozenset(settings.web.hosts)),
                self.tokens if self._web_needs_token() else None,
                self._operators,
            ),
        )
        self.web = HttpServer(page, at.web, option="--web", limits=limits, context=self._web_context())

    def bind(self) -> None:
        """Bind all ports, before any of them serves.

        Raises:
            AddressError: a port cannot be bound.
        """
        if self._bound:
            return
        for listener in (self.web, self.http, self.grpc):
            listener.bind()
        self._attach(self.grpc)
        self._bound = True

    def open_web(self) -> None:
        """Bind and serve the web port, before the others: `/readyz` answers during a restart, too.

        Raises:
            AddressError: the port cannot be bound.
        """
        if not self._web_open:
            self.web.bind()
            self.web.start()
            self._feed.start()
            self._web_open = True

    def open(self) -> None:
        """Serve on all ports; bind first if that was not done."""
        self.bind()
        self.open_web()
        for listener in (self.http, self.grpc):
            listener.start()

    def close_to_exports(self, grace_s: float) -> None:
        """Refuse new exports, and return when the others are answered, within `grace_s` seconds.

        The web port stays open; viewers of the live page are closed, since the evaluator's thread will end.
        """
        stops = (self._feed.stop, lambda: self.grpc.stop(grace_s), lambda: self.http.stop(grace_s))
        with ThreadPoolExecutor(len(stops)) as all_at_once:
            list(all_at_once.map(lambda stop: stop(), stops))

    def close(self, grace_s: float = 0) -> None:
        """Close all listeners, opened or not."""
        self.close_to_exports(grace_s)
        self.web.stop(grace_s)

    def reload_tokens(self) -> int:
        """Read the tokens of senders and operators again, and return how many there are.

        Raises:
            ConfigError: a file cannot be used; the old tokens of both stay.
        """
        both = [tokens for tokens in (self.tokens, self._operators) if tokens is not None]
        read = [tokens.read() for tokens in both]
        for tokens, digests in zip(both, read, strict=True):
            tokens.replace(digests)
        self.grpc.reload()
        return sum(len(digests) for _, digests in read)

    def reload_certificates(self) -> bool:
        """Read the certificates again, and return whether they changed.

        Raises:
            TlsFileError: they cannot be used; the old ones stay.
        """
        assert self.certificates is not None  # noqa: S101
        changed = self.certificates.reload()
        if changed:
            self.grpc.reload()
        return changed

    def counts(self) -> Counter[str]:
        """Return refused exports and viewers of the live page, by the keys of the collector's counts."""
        found = Counter(self._refused.counts())
        found.update(self.grpc.refusals())
        found.update({"viewers": self._feed.viewers, "viewers_dropped": self._feed.dropped})
        return found

    def listening(self) -> str:
        """Return the line of addresses for the operator."""
        scheme = "http" if self._web_context() is None else "https"
        tls = "" if self._settings.tls is None else f" ({'TLS' if self._settings.tls.client_ca is None else 'mTLS'})"
        return (
            f"listening: OTLP/gRPC {self.grpc.address}, OTLP/HTTP {self.http.address}, "
            f"web {scheme}://{self.web.address}{tls}"
        )

    def warnings(self) -> list[str]:
        """Return warnings on listeners and secret files that others can reach."""
        return exposure(self._settings, self._at.grpc, self._at.http, self._at.web)

    def _web_context(self) -> Callable[[], ssl.SSLContext] | None:
        if self.certificates is None or self._settings.tls is None or self._settings.tls.web == "none":
            return None
        return self.certificates.context if self._settings.tls.web == "same" else self.certificates.open_context

    def _web_needs_token(self) -> bool:
        return self._settings.auth is not None and self._settings.auth.web == "token"


def exposure(settings: Settings, grpc: Address, http: Address, web: Address) -> list[str]:
    """Return warnings, one sentence each, on reachable listeners and readable secret files."""
    ports = (("--grpc", grpc), ("--http", http), ("--web", web))
    page = "docs/collector-operations.md"
    return exposure_of(ports, settings.tls, settings.auth, settings.secret_files(), page)
