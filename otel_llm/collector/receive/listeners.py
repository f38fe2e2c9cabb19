"""The three doors of one collector, opened together and closed in the order in which nothing is lost."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_llm.collector.receive.exposure import exposure
from otel_llm.collector.receive.grpc_worker.parent import GrpcFront
from otel_llm.collector.receive.http_listener import HttpServer
from otel_llm.collector.receive.otlp_http import otlp_app
from otel_llm.collector.receive.refusals import Refused
from otel_llm.collector.web.app import web_app
from otel_llm.shared.web.guard import Guard, names_of
from otel_llm.shared.web.tls import Certificates
from otel_llm.shared.web.tokens import Tokens

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from otel_llm.collector.config.settings import Settings
    from otel_llm.collector.receive.senders import Accept
    from otel_llm.collector.web.views import Web
    from otel_llm.shared.clock import Clock
    from otel_llm.shared.web.address import Address


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the doors listen."""

    grpc: Address
    http: Address
    web: Address


class Doors:
    """The doors.

    Args:
        at: where they listen.
        settings: limits, tokens and certificates; what reads the last two of files raises ConfigError and TlsFileError.
        accept: takes exports, as in `GrpcReceiver`; of the door in another process it is not asked.
        attach: takes exports from that door, once it is bound.
        clock: what receipts are told by.
        web: answers people and scrapers.
        healthy, ready: as in `web_app`.
    """

    def __init__(
        self,
        at: Addresses,
        settings: Settings,
        *,
        accept: Accept,
        attach: Callable[[GrpcFront], None],
        clock: Clock,
        web: Web,
        healthy: Callable[[], str | None],
        ready: Callable[[], str | None],
    ) -> None:
        limits = settings.limits
        self._at = at
        self._settings = settings
        self.tokens = None if settings.auth is None else Tokens(settings.auth.tokens_file)
        self.certificates = None if settings.tls is None else Certificates(settings.tls)
        refused = self._refused = Refused()
        self._attach = attach
        self._bound = self._web_open = False
        self.grpc = GrpcFront(at.grpc, limits=limits, tokens=self.tokens, certificates=self.certificates, clock=clock)
        accept = refused.of_the_flow(accept)
        self.http = HttpServer(
            otlp_app(accept, limits=limits, tokens=self.tokens, origins=settings.cors_origins, refused=refused),
            at.http,
            option="--http",
            limits=limits,
            context=None if self.certificates is None else self.certificates.context,
        )
        page = web_app(
            metrics=web.metrics,
            streams=web.streams,
            requests=web.requests,
            page=web.page,
            healthy=lambda: healthy() or self.grpc.unwell(),
            ready=lambda: ready() or self.grpc.unwell(),
            guard=Guard(names_of(at.web, settings.web_hosts), self.tokens if self._web_asks_for_token() else None),
        )
        self.web = HttpServer(page, at.web, option="--web", limits=limits, context=self._web_context())

    def bind(self) -> None:
        """Take all ports, before anybody is let in.

        Raises:
            AddressError: a port cannot be had.
        """
        if self._bound:
            return
        for door in (self.web, self.http, self.grpc):
            door.bind()
        self._attach(self.grpc)
        self._bound = True

    def open_web(self) -> None:
        """Take the web port and answer there, before the others: a restart is asked how far it is.

        Raises:
            AddressError: the port cannot be had.
        """
        if not self._web_open:
            self.web.bind()
            self.web.start()
            self._web_open = True

    def open(self) -> None:
        """Bind, if that was not done, and let everybody in."""
        self.bind()
        self.open_web()
        for door in (self.http, self.grpc):
            door.start()

    def close_to_exports(self, grace_s: float) -> None:
        """Take no more exports; those begun are answered, within `grace_s` seconds. The web port stays."""
        with ThreadPoolExecutor(2) as both:
            list(both.map(lambda door: door.stop(grace_s), (self.grpc, self.http)))

    def close(self, grace_s: float = 0) -> None:
        """Close all; also those that never opened."""
        self.close_to_exports(grace_s)
        self.web.stop(grace_s)

    def reload_tokens(self) -> int:
        """Read the tokens anew, and return how many there are; raises ConfigError, and the old ones stay."""
        assert self.tokens is not None  # noqa: S101
        found = self.tokens.reload()
        self.grpc.take_over()
        return found

    def reload_certificates(self) -> bool:
        """Read the certificates anew, and return whether they changed; raises TlsFileError, and the old ones stay."""
        assert self.certificates is not None  # noqa: S101
        changed = self.certificates.reload()
        if changed:
            self.grpc.take_over()
        return changed

    def refusals(self) -> Counter[str]:
        """Return how many exports were refused at the doors, under the keys of the collector's counts."""
        found = Counter(self._refused.counts())
        found.update(self.grpc.refusals())
        return found

    def listening(self) -> str:
        """Return one line on what is listening where."""
        scheme = "http" if self._web_context() is None else "https"
        tls = "" if self._settings.tls is None else f" ({'TLS' if self._settings.tls.client_ca is None else 'mTLS'})"
        return (
            f"listening: OTLP/gRPC {self.grpc.address}, OTLP/HTTP {self.http.address}, "
            f"web {scheme}://{self.web.address}{tls}"
        )

    def warnings(self) -> list[str]:
        """Return what an operator should know about who can come in."""
        return exposure(self._settings, self._at.grpc, self._at.http, self._at.web)

    def _web_context(self) -> Callable[[], ssl.SSLContext] | None:
        if self.certificates is None or self._settings.tls is None or self._settings.tls.web == "none":
            return None
        return self.certificates.context if self._settings.tls.web == "same" else self.certificates.open_context

    def _web_asks_for_token(self) -> bool:
        return self._settings.auth is not None and self._settings.auth.web == "token"
