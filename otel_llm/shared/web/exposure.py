"""Warnings at the start: ports that others can reach, secret files that others can read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.config.secret_files import exposed
from otel_llm.shared.web.guard import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from otel_llm.config.sections import Auth
    from otel_llm.config.tls import Tls
    from otel_llm.shared.web.address import Address

WEB: Final = "--web"


def exposure(
    ports: Iterable[tuple[str, Address]],
    tls: Tls | None,
    auth: Auth | None,
    secrets: Iterable[Path],
    page: str,
) -> list[str]:
    """Return warnings, one sentence each, on reachable ports and readable secret files.

    `ports`: pairs of an option and an address; `--web` is the web port. `page`: of the docs, with more.
    """
    warnings = []
    for option, address in ports:
        lacks = [
            *([] if _encrypted(option, tls) else ["in plain text (see tls)"]),
            *([] if _authenticates(option, tls, auth) else ["by anybody (see auth)"]),
        ]
        if lacks and not is_loopback(address.host):
            warnings.append(f"{option} {address} can be reached from elsewhere, {' and '.join(lacks)}: {page}")
    of_files = (exposed(path) for path in dict.fromkeys(secrets))
    return warnings + [warning for warning in of_files if warning is not None]


def _encrypted(option: str, tls: Tls | None) -> bool:
    return tls is not None and (option != WEB or tls.web != "none")


def _authenticates(option: str, tls: Tls | None, auth: Auth | None) -> bool:
    mutual = tls is not None and tls.client_ca is not None and (option != WEB or tls.web == "same")
    return mutual or (auth is not None and (option != WEB or auth.web == "token"))
