"""What a settings file says of certificates and tokens."""

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
    """The web port: as the doors are; with our certificate and without one of the client; or in the clear."""


@dataclass(frozen=True, slots=True)
class Auth:
    """Bearer tokens, one a line, of which every request must bring one."""

    tokens_file: Path
    web: Literal["token", "open"] = "token"
    """Whether the web port asks for one too; `/healthz` and `/readyz` never do."""
