"""What an operator should know about who can reach the ports, and read the secrets, before somebody else does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.shared.secret_files import exposed
from otel_llm.shared.web.guard import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from otel_llm.shared.web.address import Address
    from otel_llm.shared.web.settings import Auth, Tls

WEB: Final = "--web"


def exposure(
    ports: Iterable[tuple[str, Address]],
    tls: Tls | None,
    auth: Auth | None,
    secrets: Iterable[Path | None],
    page: str,
) -> list[str]:
    """Return warnings, one sentence each: on ports that others can reach, and on secret files that others can read.

    `ports`: the option of each, and its address; `--web` is the web port. `page`: of the docs, to read more.
    """
    said = []
    for option, address in ports:
        lacks = [
            *([] if _encrypted(option, tls) else ["in plain text (see tls)"]),
            *([] if _asks(option, tls, auth) else ["by anybody (see auth)"]),
        ]
        if lacks and not is_loopback(address.host):
            said.append(f"{option} {address} can be reached from elsewhere, {' and '.join(lacks)}: {page}")
    files = [None if auth is None else auth.tokens_file, None if tls is None else tls.key, *secrets]
    warnings = (exposed(path) for path in dict.fromkeys(files) if path is not None)
    return said + [warning for warning in warnings if warning is not None]


def _encrypted(option: str, tls: Tls | None) -> bool:
    return tls is not None and (option != WEB or tls.web != "none")


def _asks(option: str, tls: Tls | None, auth: Auth | None) -> bool:
    mutual = tls is not None and tls.client_ca is not None and (option != WEB or tls.web == "same")
    return mutual or (auth is not None and (option != WEB or auth.web == "token"))
