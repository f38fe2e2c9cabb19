"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import trustme


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
    return _authority(name)[1]


def signed(name: str = "server", by: str = "one") -> Pair:
    """Return a certificate for this machine, or for a client, signed by an authority."""
    return _signed(name, by)


def write_key(key: trustme.Blob, path: Path) -> None:
    path.touch(mode=0o600)
    key.write_to_path(path)


@cache
def _authority(name: str) -> tuple[trustme.CA, Pair]:
    folder = Path(tempfile.mkdtemp(prefix="receive-tls-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = trustme.CA(organization_unit_name=name)
    files = Pair(folder / "ca.pem", folder / "ca.key")
    made.cert_pem.write_to_path(files.certificate)
    write_key(made.private_key_pem, files.key)
    return made, files


@cache
def _signed(name: str, by: str) -> Pair:
    made, files = _authority(by)
    leaf = made.issue_cert("localhost", "127.0.0.1", common_name=name)
    pair = Pair(files.key.with_name(f"{name}.pem"), files.key.with_name(f"{name}.key"))
    leaf.cert_chain_pems[0].write_to_path(pair.certificate)
    write_key(leaf.private_key_pem, pair.key)
    return pair
