"""Signed actions as a collector sends them, and a relay that is asked for them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.relay.rig import Rig

from otel_llm.actions.delivery.signing import signed_headers

SECRET = bytes(range(32))
SETTINGS = "actions: {secret_file: relay.secret}\n"


def write_secret(folder: Path, *secrets: bytes) -> Path:
    """Write the file that `SETTINGS` names."""
    file = folder / "relay.secret"
    file.write_text("".join(f"whsec_{base64.b64encode(one).decode()}\n" for one in secrets or (SECRET,)))
    file.chmod(0o600)
    return file


def event(
    action: str,
    number: int = 1,
    *,
    span: tuple[str, str] | None = None,
    instance: str = "",
    arguments: Mapping[str, Any] | None = None,
    candidates: Sequence[tuple[str, str]] | None = None,
    rule: str = "R",
    expires_in_s: float = 30.0,
) -> dict[str, Any]:
    """Return a CloudEvent; `span`: trace id and span id in hex of the request that it is about."""
    now_ns = time.time_ns()
    data: dict[str, Any] = {
        "action": action,
        "arguments": arguments or {},
        "expires_at": "2026-11-21T23:00:00Z",
        "expires_unix_nano": now_ns + int(expires_in_s * 1e9),
        "flip_unix_nano": now_ns,
        "now_offset_nano": 0,
        "group": "g",
        "rule": rule,
        "rule_hash": "0123456789abcdef",
        "scope": "instance" if span is None else "stream",
        "labels": {"slo_class": "chat", "model": "m", "instance": instance, "measured_at": "relay"},
        "facts": {},
    }
    if span is not None:
        data["request"] = {"trace_id": span[0], "span_id": span[1], "choice": 0, "id": None}
    if candidates is not None:
        data["candidates"] = [{"trace_id": trace, "span_id": own, "choice": 0} for trace, own in candidates]
    return {
        "specversion": "1.0",
        "id": f"act_{number}",
        "source": "/test",
        "type": f"io.otel_llm.action.{action}.v1",
        "subject": "x",
        "time": "2026-11-21T23:00:00Z",
        "datacontenttype": "application/json",
        "data": data,
    }


def signed(body: bytes, message_id: str, *, secret: bytes = SECRET, at_s: float | None = None) -> dict[str, str]:
    """Return the headers of a message; `at_s`: when it was signed (unix), None: now."""
    return signed_headers(message_id, int(time.time() if at_s is None else at_s), body, [secret])


async def send(running: Rig, body: bytes, headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Send a message as it is; return the status, and the answer."""
    async with running.session.post(f"{running.web}/v1/actions", data=body, headers=headers) as response:
        return response.status, json.loads(await response.read())


async def ask(running: Rig, action: dict[str, Any], **of: Any) -> tuple[int, dict[str, Any]]:
    """Send an event, signed; see `signed`. It names this relay, unless it names another."""
    named = {**action, "data": {"relay": running.service.name, **action["data"]}}
    body = json.dumps(named).encode()
    return await send(running, body, signed(body, action["id"], **of))
