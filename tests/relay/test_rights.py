"""Three rights: clients infer, operators read and drain, collectors send signed actions; none has another's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.relay.fake_engine import FakeEngine
from support.relay.rig import Rig, rig
from support.relay.signed_actions import SETTINGS, write_secret

from otel_llm.relay.paths import Passthrough

ALICE, OPERATOR = "client-alice-of-this-test", "an-operator-of-this-test"
CHAT: dict[str, Any] = {"model": "fake", "max_tokens": 3, "messages": [{"role": "user", "content": "x"}]}
READS = ("/metrics", "/v1/streams", "/v1/backends", "/v1/events")
CONTROLS = (
    "/sleep", "/sleep?level=2", "/wake_up", "/abort_request", "/abort_requests", "/inference/v1/abort_requests",
    "/inference/v1/generate", "/flush_cache", "/reset_prefix_cache", "/v1/load_lora_adapter", "/load_lora_adapter",
    "/v1/unload_lora_adapter", "/update_weights_from_disk", "/pause", "/collective_rpc", "/start_profile", "/generate",
    "/server_info", "/invocations", "/v1/internal/model/load", "/v1/models/load", "/v1/organization/admin_api_keys",
    "/V1/Load_LoRA_Adapter", "/v1//load_lora_adapter", "/v1/load%5Flora_adapter", "//sleep", "/slee%70", "/Sleep", "/",
)  # fmt: skip
INFERENCE = ("/v1/embeddings", "/v1/responses", "/v1/responses/r_1/cancel", "/v1/rerank", "/tokenize", "/detokenize")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", CONTROLS)
def test_a_call_that_controls_an_engine_does_not_pass(tmp_path: Path, path: str) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            asked = len(running.engines[0].asked)
            async with running.session.post(running.url + path, json={}) as response:
                assert response.status == 404
                assert (await response.json())["error"]["code"] == "unknown_path"
            assert len(running.engines[0].asked) == asked

    asyncio.run(go())


@pytest.mark.parametrize("path", INFERENCE)
def test_inference_passes(path: str) -> None:
    assert Passthrough().passes("POST", path)


def test_models_are_read_and_nothing_else() -> None:
    assert Passthrough().passes("GET", "/v1/models/org/some-lora")
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        assert not Passthrough().passes(method, "/v1/models/org/some-lora")


@pytest.mark.parametrize(
    ("added", "passes", "does_not"),
    [("/sleep", "/Sleep", "/sleep/x"), ("/In/*", "/in/v1/generate", "/in"), ("/*", "/any", "/x%5Cy")],
)  # fmt: skip
def test_settings_add_paths(tmp_path: Path, added: str, passes: str, does_not: str) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=f"passthrough: ['{added}']\n") as running:
            for path, theirs in ((passes, True), (does_not, False)):
                async with running.session.post(running.url + path, json={}) as response:
                    assert response.status in ((404, 405) if theirs else (400, 404))
                    assert (b"unknown_path" in await response.read() or response.status == 400) is not theirs

    asyncio.run(go())


async def statuses(running: Rig, token: str) -> set[int]:
    """Return the statuses of what operators may do, with a token."""
    found = set()
    for path in READS:
        async with running.session.get(running.web + path, headers=bearer(token)) as response:
            found.add(response.status)
    for change in ("drain", "undrain"):
        url = f"{running.web}/v1/backends/a/{change}"
        async with running.session.post(url, json={}, headers=bearer(token)) as response:
            found.add(response.status)
    return found


@pytest.mark.parametrize("web", ["token", "open"])
@pytest.mark.parametrize("operators", [True, False])
def test_nobody_has_the_right_of_another(tmp_path: Path, web: str, operators: bool) -> None:
    (tmp_path / "clients").write_text(f"{ALICE}\n")
    (tmp_path / "operators").write_text(f"{OPERATOR}\n")
    write_secret(tmp_path)
    settings = f"auth: {{tokens_file: clients, web: {web}}}\n" + SETTINGS
    settings += "operators: {tokens_file: operators}\n" if operators else ""

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=settings) as running:
            refused = {401} if web == "token" else {200, 401}
            assert await statuses(running, ALICE) == refused
            assert await statuses(running, OPERATOR) == ({200} if operators else refused)
            assert (await running.metrics())['otel_llm_relay_backend_open{instance="a"}'] == 1
            for token, status in ((ALICE, 200), (OPERATOR, 401)):
                async with running.session.post(
                    running.url + "/v1/chat/completions", json=CHAT, headers=bearer(token)
                ) as response:
                    assert response.status == status
                async with running.session.post(
                    running.web + "/v1/actions", json={}, headers=bearer(token)
                ) as response:
                    assert response.status == 401
            assert any("see operators" in line for line in running.service.warnings()) is not operators

    asyncio.run(go())


def test_tokens_of_operators_are_read_anew(tmp_path: Path) -> None:
    (tmp_path / "clients").write_text(f"{ALICE}\n")
    (tmp_path / "operators").write_text(f"{OPERATOR}\n")
    settings = "auth: {tokens_file: clients}\noperators: {tokens_file: operators}\n"

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=settings) as running:
            (tmp_path / "operators").write_text(f"{OPERATOR}-2\n")
            line, refused = running.service.reload()
            assert refused == []
            assert line is not None
            assert "tokens of operators (1)" in line
            assert await statuses(running, OPERATOR) == {401}
            assert await statuses(running, f"{OPERATOR}-2") == {200}

    asyncio.run(go())
