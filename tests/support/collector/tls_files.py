"""Certificates for tests, made by the `openssl` command: an authority, and what it signs."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path

    @property
    def pem(self) -> tuple[bytes, bytes]:
        return self.certificate.read_bytes(), self.key.read_bytes()


def authority(name: str = "one") -> Pair:
    """Return a certificate authority; each name is another one."""
    return _authority(name)


def signed(name: str = "server", by: str = "one") -> Pair:
    """Return a certificate for this machine, or for a client, signed by an authority."""
    return _signed(name, by)


@cache
def _authority(name: str) -> Pair:
    folder = Path(tempfile.mkdtemp(prefix="receive-tls-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Pair(folder / "ca.pem", folder / "ca.key")
    _openssl("req", "-x509", *_NEW_KEY, "-subj", f"/CN=authority {name}", "-keyout", made.key, "-out", made.certificate)
    return made


@cache
def _signed(name: str, by: str) -> Pair:
    ca = authority(by)
    made = Pair(ca.key.with_name(f"{name}.pem"), ca.key.with_name(f"{name}.key"))
    _openssl(
        *("req", "-x509", *_NEW_KEY, "-CA", ca.certificate, "-CAkey", ca.key, "-subj", f"/CN={name}"),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"),
        *("-keyout", made.key, "-out", made.certificate),
    )
    return made


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
