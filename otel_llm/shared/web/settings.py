"""The settings of certificates and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files; with `client_ca` clients must show a certificate that it signed (mTLS)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    web: Literal["same", "server", "none"] = "same"
    """TLS of the web port: `same` as the receivers; `server`: without a client certificate; `none`: plain text."""


@dataclass(frozen=True, slots=True)
class Auth:
    """A file of bearer tokens, `TENANT=TOKEN` or a token a line; every request must have one of them."""

    tokens_file: Path
    operators_file: Path | None = None
    """Bearer tokens for the web port that show all tenants."""
    web: Literal["token", "open"] = "token"
    """Whether the web port needs one, too; `/healthz` and `/readyz` never do."""
