"""Signatures of Standard Webhooks, beside the project's own library."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.actions.delivery.signing import SignatureError, signed_headers, verify

SECRET = bytes(range(32))
OTHER = bytes(range(1, 33))
NOW_S = 1_790_000_000


def theirs(secret: bytes) -> Any:
    return standardwebhooks.Webhook("whsec_" + base64.b64encode(secret).decode())


def test_the_vector_of_the_specification() -> None:
    # Source: standard-webhooks, libraries' test vector (svix and standardwebhooks alike).
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    found = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body, [secret])
    assert found["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert found["webhook-timestamp"] == "1614265330"


@given(st.text("{}\"':, abcé😀", max_size=200), st.binary(min_size=24, max_size=64))
def test_their_library_believes_ours_and_ours_theirs(text: str, secret: bytes) -> None:
    body, message_id = text.encode(), "act_0123456789abcdef"
    assert (
        theirs(secret).sign(message_id, datetime.fromtimestamp(NOW_S, UTC), text)
        in (signed_headers(message_id, NOW_S, body, [secret])["webhook-signature"])
    )
    headers = signed_headers(message_id, NOW_S, body, [OTHER, secret])
    assert verify(headers, body, [secret], NOW_S) == message_id


def test_their_library_verifies_a_message_with_two_signatures() -> None:
    now_s = int(datetime.now(UTC).timestamp())  # their library asks the clock itself
    headers = signed_headers("act_1", now_s, b'{"a":1}', [OTHER, SECRET])
    assert theirs(SECRET).verify(b'{"a":1}', headers) == {"a": 1}
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        theirs(bytes(32)).verify(b'{"a":1}', headers)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"webhook-id": "act_2"}, "no signature fits"),
        ({"webhook-timestamp": str(NOW_S + 1)}, "no signature fits"),
        ({"webhook-signature": "v1,AAAA"}, "no signature fits"),
        ({"webhook-signature": "v1a,AAAA v2,é"}, "no signature fits"),
        ({"webhook-signature": ""}, "not signed"),
        ({"webhook-id": ""}, "not signed"),
        ({"webhook-id": "act.1"}, "not signed"),
        ({"webhook-timestamp": "1e9"}, "no number"),
        ({"webhook-timestamp": "-5"}, "no number"),
        ({"webhook-timestamp": "9" * 400}, "no number"),
    ],
)
def test_what_was_changed_is_not_believed(change: dict[str, str], words: str) -> None:
    headers = signed_headers("act_1", NOW_S, b"body", [SECRET]) | change
    with pytest.raises(SignatureError, match=words):
        verify(headers, b"body", [SECRET], NOW_S)


def test_another_body_and_another_secret_are_not_believed() -> None:
    headers = signed_headers("act_1", NOW_S, b"body", [SECRET])
    for body, secrets in ((b"bodY", [SECRET]), (b"body", [OTHER]), (b"body", [])):
        with pytest.raises(SignatureError, match="no signature fits"):
            verify(headers, body, secrets, NOW_S)


@pytest.mark.parametrize(("off_s", "believed"), [(0, True), (300, True), (-300, True), (301, False), (-301, False)])
def test_a_replay_and_a_wrong_clock_are_refused(off_s: int, believed: bool) -> None:
    headers = signed_headers("act_1", NOW_S, b"body", [SECRET])
    if believed:
        assert verify(headers, b"body", [SECRET], NOW_S + off_s) == "act_1"
    else:
        with pytest.raises(SignatureError, match="replay, or a clock"):
            verify(headers, b"body", [SECRET], NOW_S + off_s)
