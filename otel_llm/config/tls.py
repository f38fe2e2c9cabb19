"""TLS of listeners: PEM files, read for gRPC and HTTP alike, and replaced while the service runs.

The gRPC receiver, in another process, makes its credentials of them (`grpc_receiver`).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, NoReturn, Self

from pydantic import ValidationInfo, model_validator

from otel_llm.config.errors import TlsFileError
from otel_llm.config.settings_model import FilePath, SettingsModel
from otel_llm.config.strict_model import wrong
from otel_llm.formats.io.open_input import open_input

if TYPE_CHECKING:
    from pathlib import Path

MOST_FILE_BYTES: Final = 2**20


class Tls(SettingsModel):
    """PEM files; with `client_ca` clients must show a certificate that it signed (mTLS)."""

    certificate: FilePath
    """The file of the certificate chain."""
    key: FilePath
    """The file of the private key, without a password."""
    client_ca: FilePath | None = None
    """The file of the certificates that sign those of clients."""
    web: Literal["same", "server", "none"] = "same"
    """TLS of the web port: `same` as the receivers; `server`: without a client certificate; `none`: plain text."""

    @model_validator(mode="after")
    def _usable(self, info: ValidationInfo) -> Self:
        if info.context is not None:
            try:
                Certificates(self)
            except TlsFileError as error:
                raise wrong(str(error), "", error.key) from None
        return self


class Pem(NamedTuple):
    """The contents of the files; `client_ca` None: clients need no certificate."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The files of one consistent read."""

    pem: Pem
    context: ssl.SSLContext
    """For HTTP; it requires a client certificate if `client_ca` is given."""
    open_context: ssl.SSLContext
    """For HTTP, without a client certificate."""


class Certificates:
    """The certificates of the listeners. New connections get those of the last successful `reload`.

    Raises:
        TlsFileError: a file cannot be read, is no such PEM, or key and certificate are not a pair.
    """

    def __init__(self, files: Tls) -> None:
        self._files = files
        self._loaded = _load(files)

    def reload(self) -> bool:
        """Read the files again, and return whether they changed.

        Raises:
            TlsFileError: as the constructor; the old ones stay.
        """
        loaded = _load(self._files)
        if loaded.pem == self._loaded.pem:
            return False
        self._loaded = loaded
        return True

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection; it requires a client certificate if `client_ca` is given."""
        return self._loaded.context

    def open_context(self) -> ssl.SSLContext:
        """Return the context for a new connection without a client certificate."""
        return self._loaded.open_context

    @property
    def pem(self) -> Pem:
        """Return the contents of the files, as last read, for the gRPC receiver."""
        return self._loaded.pem


def _load(files: Tls) -> _Loaded:
    first = _read(files)
    mutual = _context(files)
    if files.client_ca is not None:
        try:
            mutual.load_verify_locations(cafile=files.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise TlsFileError("client_ca", f"{files.client_ca}: {_reason(error)}") from None
        mutual.verify_mode = ssl.CERT_REQUIRED
    loaded = _Loaded(first, mutual, _context(files))
    if _read(files) != first:
        raise TlsFileError("certificate", f"{files.certificate}: the files changed while they were read: try again")
    return loaded


def _read(files: Tls) -> Pem:
    ca = None if files.client_ca is None else _pem("client_ca", files.client_ca)
    return Pem(_pem("certificate", files.certificate), _pem("key", files.key), ca)


def _pem(key: str, path: Path) -> bytes:
    try:
        with open_input(path) as file:
            raw = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise TlsFileError(key, f"{path}: {error.strerror or error}: name a PEM file that can be read") from None
    if b"-----BEGIN " not in raw or len(raw) > MOST_FILE_BYTES:
        raise TlsFileError(key, f"{path}: not a PEM file (-----BEGIN ...)")
    return raw


def _context(files: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])

    def no_password() -> NoReturn:
        raise TlsFileError("key", f"{files.key}: the key is encrypted: the service cannot ask for its password")

    try:
        context.load_cert_chain(files.certificate, files.key, password=no_password)
    except (OSError, ssl.SSLError) as error:
        # OpenSSL does not say which of the two files is at fault, except for a mismatch.
        if "KEY_VALUES_MISMATCH" in str(error):
            raise TlsFileError("key", f"{files.key}: not the key of {files.certificate}") from None
        raise TlsFileError("certificate", f"{files.certificate} with {files.key}: {_reason(error)}") from None
    return context


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
