"""LiteLLM, if it is installed, in every situation of the table that OpenAI's chat completions can have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.instrumentation.litellm_alone import litellm_alone
from support.instrumentation.recorded import Recorded
from support.instrumentation.situations import CHAT, SITUATIONS
from support.instrumentation.wire_server import WireServer

import otel_llm
from otel_llm import semconv

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with litellm_alone(monkeypatch):
        yield


def read(server: WireServer) -> list[str | None] | str:
    """Return the texts that the caller gets, or the name of the error that litellm raises."""
    import litellm

    try:
        stream = litellm.completion(
            "openai/m", messages=[], api_base=server.url + "/v1", api_key="none", stream=True, max_retries=0
        )
        return [one.choices[0].delta.content for one in stream]
    except Exception as error:  # noqa: BLE001
        return type(error).__name__


@pytest.mark.parametrize("name", [name for name, one in SITUATIONS.items() if "chat" in one.apis])
def test_litellm(name: str, recorder: Recorded) -> None:
    situation = SITUATIONS[name]
    with WireServer([piece for piece in situation.body(CHAT) if piece], situation.headers) as server:
        got = read(server)
        [request] = recorder.requests()
        otel_llm.uninstrument()
        assert read(server) == got
    attributes = request.attributes or {}
    if isinstance(got, str):
        assert attributes[semconv.OUTCOME] in {"error", "disconnected"}
    else:
        # LiteLLM ends what broke off as whole, and hides some errors.
        assert attributes[semconv.OUTCOME] in {"completed", situation.outcome}
        assert attributes[semconv.TOKENS] == len([text for text in got if text])
