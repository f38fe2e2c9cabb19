"""What an operator should know about who can reach the doors, and read the secrets, before somebody else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.shared.secret_files import exposed
from otel_llm.shared.web.guard import is_loopback

if TYPE_CHECKING:
    from otel_llm.collector.config import Settings
    from otel_llm.shared.web.address import Address


def exposure(settings: Settings, grpc: Address, http: Address, web: Address) -> list[str]:
    """Return warnings, one sentence each, on doors that others can reach and on secret files that others can read."""
    tls, auth = settings.tls, settings.auth
    mutual = tls is not None and tls.client_ca is not None
    known = auth is not None or mutual
    web_encrypted = tls is not None and tls.web != "none"
    web_known = (auth is not None and auth.web == "token") or (tls is not None and mutual and tls.web == "same")
    said = []
    for option, address, encrypted, asks in (
        ("--grpc", grpc, tls is not None, known),
        ("--http", http, tls is not None, known),
        ("--web", web, web_encrypted, web_known),
    ):
        lacks = [*([] if encrypted else ["in plain text (see tls)"]), *([] if asks else ["by anybody (see auth)"])]
        if lacks and not is_loopback(address.host):
            said.append(f"{option} {address} can be reached from elsewhere, {' and '.join(lacks)}: docs/collector.md")
    secret = [None if auth is None else auth.tokens_file, None if tls is None else tls.key]
    secret += [receiver.secret_file for receiver in settings.receivers]
    secret += [None if settings.alertmanager is None else settings.alertmanager.bearer_file]
    secret += [file for engine in settings.actions.engines for file in (engine.token_file, engine.secret_file)]
    warnings = (exposed(path) for path in dict.fromkeys(secret) if path is not None)
    return said + [warning for warning in warnings if warning is not None]
