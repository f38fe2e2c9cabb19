"""Bearer tokens: read from a file, compared in constant time, replaced while the service runs."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from otel_llm.config.secret_files import read_tokens
from otel_llm.shared.errors import UnauthenticatedError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    Digests: TypeAlias = "tuple[bytes, tuple[tuple[bytes, str], ...]]"
    """A key, and for each token its digest under the key, and its tenant."""


class Bearer(NamedTuple):
    """The sender of a request: the digest of its token, and its tenant."""

    digest: bytes
    tenant: str


class KnownTokens:
    """The digests of accepted tokens; `check` is safe from any thread, also during a `replace`."""

    def __init__(self) -> None:
        # Digests under a key of this service have one length, and a comparison of them reveals nothing of a token.
        # Key and digests are one tuple, replaced as one: no check sees a key with the digests of another.
        self._known: Digests = (secrets.token_bytes(32), ())

    def replace(self, digests: Digests) -> None:
        """Accept these tokens from now on: the `digests` of another instance."""
        self._known = digests

    @property
    def digests(self) -> Digests:
        """Return the key and the digests under it, for another process of this service."""
        return self._known

    @property
    def tenants(self) -> set[str]:
        """Return the tenants of all tokens."""
        return {tenant for _, tenant in self._known[1]}

    def check(self, headers: Iterable[str | bytes]) -> Bearer:
        """Check the values of a request's `authorization` headers, and return its sender.

        Raises:
            UnauthenticatedError: there is not exactly one value, or it is not one of the tokens.
        """
        values = [value.encode("utf-8", "replace") if isinstance(value, str) else value for value in headers]
        scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        if scheme.lower() != b"bearer":
            raise UnauthenticatedError("send one token: Authorization: Bearer TOKEN")
        key, digests = self._known
        given = self._digest(token.strip(), key)
        found = None
        for digest, tenant in digests:
            if hmac.compare_digest(digest, given):
                found = tenant
        if found is None:
            raise UnauthenticatedError("the token is not known here")
        return Bearer(given, found)

    @staticmethod
    def _digest(token: bytes, key: bytes) -> bytes:
        return hashlib.blake2b(token, key=key, digest_size=32).digest()


class Tokens(KnownTokens):
    """The tokens of one file.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.reload()

    def reload(self) -> int:
        """Read the file again, and return how many tokens it holds.

        Raises:
            ConfigError: it cannot be used; the old tokens stay.
        """
        self.replace(digests := self.read())
        return len(digests[1])

    def read(self) -> Digests:
        """Return what the file holds now, for `replace`.

        Raises:
            ConfigError: it cannot be used.
        """
        key, _ = self._known
        return key, tuple((self._digest(one.secret, key), one.tenant) for one in read_tokens(self._path))
