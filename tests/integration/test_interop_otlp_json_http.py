"""OTLP as JSON over HTTP, written by hand as with curl: every way in which senders may write the same spans."""

from __future__ import annotations

import gzip
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from support.commands import collector
from support.integration import interop_rows
from support.patience import WAIT_S

Json = Any


def numbers(value: Json) -> Json:
    """Write every int64 as a JSON number, where the mapping of protobuf has a string."""
    if isinstance(value, dict):
        return {
            key: int(inner) if key.endswith("UnixNano") or key == "intValue" else numbers(inner)
            for key, inner in value.items()
        }
    return [numbers(one) for one in value] if isinstance(value, list) else value


def unknown(value: Json) -> Json:
    """Put a field that nobody knows yet into every object but the values of attributes."""
    if isinstance(value, dict):
        inner = {key: one if key == "value" else unknown(one) for key, one in value.items()}
        return {"addedIn2031": {"deep": [1, None, "x"]}} | inner
    return [unknown(one) for one in value] if isinstance(value, list) else value


def upper(value: Json) -> Json:
    """Write ids in capitals."""
    if isinstance(value, dict):
        return {key: one.upper() if key.endswith("Id") else upper(one) for key, one in value.items()}
    return [upper(one) for one in value] if isinstance(value, list) else value


WAYS: dict[str, Callable[[Json], Json]] = {
    "int64 as strings": lambda export: export,
    "int64 as numbers": numbers,
    "unknown fields": unknown,
    "ids in capitals": upper,
}


def post(to: str, body: bytes, **headers: str) -> tuple[int, str, Json]:
    """Return the status, the content type and the body of the answer."""
    told = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{to}/v1/traces", body, told, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.headers["Content-Type"], json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.headers["Content-Type"], json.loads(refused.read())


@pytest.mark.parametrize("way", WAYS)
def test_json_is_read_however_it_is_written(tmp_path: Path, way: str) -> None:
    with collector(tmp_path, "--verdicts", "none") as running:
        for number, export in enumerate(interop_rows.exports()):
            body = json.dumps(WAYS[way](deepcopy(export))).encode()
            if number % 2:
                answer = post(running.http, gzip.compress(body), Content_Encoding="gzip")
            else:
                answer = post(running.http, body, Content_Type="application/json; charset=utf-8")
            assert answer == (200, "application/json", {})
        status, said = running.stop()

    assert status == 0, said
    assert interop_rows.differences(tmp_path / "journal") == []


def test_what_cannot_be_used_is_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    first = deepcopy(interop_rows.exports()[0])
    spans = first["resourceSpans"][0]["scopeSpans"][0]["spans"]
    spans.append(deepcopy(spans[0]) | {"traceId": "0" * 32})
    with collector(tmp_path, "--verdicts", "none") as running:
        status, _, told = post(running.http, json.dumps(first).encode())
        assert (status, told["partialSuccess"]["rejectedSpans"]) == (200, "1")
        assert "bad_trace_id" in told["partialSuccess"]["errorMessage"]
        for broken in (b"", b"{", b"[]", b'{"resourceSpans": 3}', b"\xff\xfe{}"):
            status, kind, told = post(running.http, broken)
            assert (status, kind, told.get("code")) == (400, "application/json", 3), broken
        for export in interop_rows.exports()[1:]:
            assert post(running.http, json.dumps(export).encode())[0] == 200
        assert running.stop()[0] == 0

    assert interop_rows.differences(tmp_path / "journal") == []
