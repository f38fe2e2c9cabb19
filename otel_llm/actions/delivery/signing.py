"""Sign and verify messages by Standard Webhooks: an HMAC over id, time and body, with a shared secret.

Source: https://github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md, "Signature scheme".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE_S: Final = 300
"""Largest difference of the two clocks; older messages are replays. Source: the libraries of Standard Webhooks."""
_VERSION: Final = "v1"


class SignatureError(ValueError):
    """A message failed verification; the text never repeats its contents."""


def signed_headers(message_id: str, at_s: int, body: bytes, secrets: Sequence[bytes]) -> dict[str, str]:
    """Return the headers of a message sent at `at_s` (unix seconds): one signature for each secret, newest first."""
    signatures = " ".join(_signature(message_id, at_s, body, secret) for secret in secrets)
    return {ID: message_id, TIMESTAMP: str(at_s), SIGNATURE: signatures}


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: Sequence[bytes],
    now_s: float,
    tolerance_s: float = TOLERANCE_S,
) -> str:
    """Return the id of a message that one of the secrets has signed recently; names of headers in lower case.

    Raises:
        SignatureError: a header is missing or malformed, no signature fits, or the time is too far off.
    """
    message_id, stamp, given = (headers.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not message_id or "." in message_id or not stamp or not given:
        raise SignatureError("not signed: webhook-id, webhook-timestamp and webhook-signature are needed")
    if not (message_id + given).isprintable():  # bytes that are no UTF-8 are lone surrogates here
        raise SignatureError("webhook-id and webhook-signature are no plain text")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 16):
        raise SignatureError("webhook-timestamp is no number of seconds")
    at_s = int(stamp)
    good = [_signature(message_id, at_s, body, secret).encode() for secret in secrets]
    # Every pair is compared, in constant time.
    fits = [hmac.compare_digest(one.encode(), other) for one in given.split(" ")[:16] for other in good]
    if not any(fits):
        raise SignatureError("no signature fits: the secret is another one, or the message was changed")
    if abs(now_s - at_s) > tolerance_s:
        raise SignatureError(f"signed {now_s - at_s:+.0f} s ago: a replay, or a clock that is wrong")
    return message_id


def _signature(message_id: str, at_s: int, body: bytes, secret: bytes) -> str:
    signed = b".".join((message_id.encode(), str(at_s).encode(), body))
    return f"{_VERSION},{base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()}"
