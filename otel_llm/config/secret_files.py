"""Files of secrets: bounded in size, never quoted in messages, with a warning if every user can read them."""

from __future__ import annotations

import base64
import re
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.config.yaml_file import ConfigError, UnreadableConfigError
from otel_llm.formats.io.journal_format import TENANT
from otel_llm.formats.io.open_input import open_input
from otel_llm.formats.records import DEFAULT_TENANT

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILE_BYTES: Final = 64 * 1024
MIN_SECRET_BYTES: Final = 24
MAX_SECRET_BYTES: Final = 64
"""Source: Standard Webhooks, "Signature scheme"."""
MAX_SECRETS: Final = 4
_KEY_ADVICE: Final = "write `whsec_` and 24 to 64 bytes in base64, for example from `openssl rand -base64 32`"
MAX_TOKENS: Final = 256
MIN_TOKEN_CHARS: Final = 16
MAX_TOKEN_CHARS: Final = 1024
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
"""`b64token` of RFC 6750, section 2.1."""
_BEARER_ADVICE: Final = "write one token a line, for example from `openssl rand -hex 32`"
_HEADER: Final = re.compile(r"([A-Za-z0-9_.-]+)[ \t]*:[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)", re.ASCII)


def secret_lines(path: Path) -> list[tuple[int, str]]:
    """Return the numbered lines of a file, without empty lines and comments (`#`).

    Raises:
        UnreadableConfigError: it cannot be read.
        ConfigError: it is not UTF-8, or more than 64 KiB.
    """
    try:
        with open_input(path) as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableConfigError(str(path), None, None, "", reason, "name a file that can be read") from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(str(path), None, None, "", f"more than {MAX_FILE_BYTES // 1024} KiB", "one secret a line")
    try:
        lines = raw.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise ConfigError(str(path), None, None, "", "not UTF-8", "save the file as UTF-8") from None
    numbered = ((number, line.strip()) for number, line in enumerate(lines, 1))
    return [(number, line) for number, line in numbered if line and not line.startswith("#")]


def read_headers(path: Path) -> tuple[tuple[str, str], ...]:
    """Return the headers of a file, one `name: value` a line.

    Raises:
        ConfigError: as `secret_lines`, or a line is no header; its text is not repeated.
    """
    headers = []
    for number, line in secret_lines(path):
        match = _HEADER.fullmatch(line)
        if match is None:
            raise ConfigError(str(path), number, 1, "", "not a header", "write `name: value`, printable ASCII")
        headers.append((match[1].lower(), match[2]))
    return tuple(headers)


def read_signing_secrets(path: Path) -> tuple[bytes, ...]:
    """Return the keys of a file of signing secrets, one a line, in the form of Standard Webhooks: `whsec_` and base64.

    A message is signed with each key. To replace a key, put the new one first, and remove the old one when all
    receivers have the new one.

    Raises:
        ConfigError: as `secret_lines`; there is no key, or more than MAX_SECRETS; or a line is no key, and is not
            repeated.
    """
    keys = []
    for number, line in secret_lines(path):
        try:
            key = base64.b64decode(line.removeprefix("whsec_"), validate=True)
        except ValueError:
            key = b""
        if not line.startswith("whsec_") or not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
            raise ConfigError(str(path), number, 1, "", "not a signing secret", _KEY_ADVICE)
        keys.append(key)
    if not 1 <= len(keys) <= MAX_SECRETS:
        message = f"more than {MAX_SECRETS} secrets" if keys else "no secret in this file"
        raise ConfigError(str(path), None, None, "", message, _KEY_ADVICE)
    return tuple(keys)


class Token(NamedTuple):
    """A bearer token, and the tenant whose it is."""

    secret: bytes
    tenant: str = DEFAULT_TENANT


def read_tokens(path: Path) -> list[Token]:
    """Return the tokens of a file: `TENANT=TOKEN` or a bare token a line, `#` begins a comment.

    Raises:
        ConfigError: it cannot be read, or holds no token, too many, or one twice; or a line is no token, and is not
            repeated.
    """
    tokens: dict[bytes, Token] = {}
    for number, line in secret_lines(path):
        written = line.partition("#")[0].rstrip()
        tenant, _, token = written.partition("=")
        if not token.strip("="):  # a bare token may end in the equals signs of base64
            tenant, token = DEFAULT_TENANT, written
        if not TENANT.fullmatch(tenant):
            message = "not the name of a tenant (1 to 64 letters, digits, -._)"
            raise ConfigError(str(path), number, 1, "", message, "write `TENANT=TOKEN`, or the token alone")
        if not _TOKEN.fullmatch(token):
            message = "not a bearer token (letters, digits, -._~+/ and =)"
            raise ConfigError(str(path), number, 1, "", message, _BEARER_ADVICE)
        if not MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_CHARS:
            limits = f"{MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} characters"
            raise ConfigError(str(path), number, 1, "", f"a token has {limits}, not {len(token)}", _BEARER_ADVICE)
        if token.encode() in tokens:
            raise ConfigError(str(path), number, 1, "", "this token is in the file twice", "give each tenant its own")
        tokens[token.encode()] = Token(token.encode(), tenant)
    if not tokens:
        raise ConfigError(str(path), None, None, "", "no token in this file", _BEARER_ADVICE)
    if len(tokens) > MAX_TOKENS:
        raise ConfigError(str(path), None, None, "", f"more than {MAX_TOKENS} tokens", "let some senders share one")
    return list(tokens.values())


def read_bearer(path: Path) -> str:
    """Return the token of a file that this process sends: the first. Raises ConfigError as `read_tokens`."""
    return read_tokens(path)[0].secret.decode()


def exposed(path: Path) -> str | None:
    """Return a warning if every user of this machine can read a file of secrets; else None."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    if mode & stat.S_IROTH:
        return f"{path} can be read by every user of this machine: chmod o-r {path}"
    return None
