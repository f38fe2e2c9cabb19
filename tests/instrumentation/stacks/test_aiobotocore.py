"""Bedrock's streams over the real aiobotocore, if it is installed: it holds botocore at one version."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from opentelemetry.instrumentation.utils import suppress_instrumentation
from support.instrumentation.recorded import Recorded, ids
from support.instrumentation.wire_server import WireServer
from support.patience import WAIT_S
from support.sse_server import Gate
from support.wires import bedrock

from otel_llm import semconv
from otel_llm.instrumentation.process import runtime

if find_spec("aiobotocore") is None:
    pytest.skip("no aiobotocore", allow_module_level=True)

from aiobotocore.session import get_session
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError

import otel_llm

WORDS = [f"w{number} " for number in range(4)]
MESSAGES: list[Any] = [{"role": "user", "content": [{"text": "hello"}]}]
STREAM = {"Content-Type": bedrock.CONTENT_TYPE}

pytestmark = [
    pytest.mark.world,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Collect what a test dropped while its own filters of warnings stand."""
    yield
    gc.collect()


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[Any]:
    async with get_session().create_client(
        "bedrock-runtime",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
        config=Config(retries={"max_attempts": 0}),
    ) as made:
        yield made


async def converse(url: str) -> list[Any]:
    async with client(url) as made:
        reply = await made.converse_stream(modelId="m", messages=MESSAGES)
        return [event async for event in reply["stream"]]


def serving(*more: Any, kind: str = "converse") -> WireServer:
    return WireServer([*bedrock.frames(kind, WORDS), *more], STREAM)


def test_a_reply_is_recorded_once_and_the_caller_gets_what_it_got(recorder: Recorded) -> None:
    with serving() as server:
        with suppress_instrumentation():
            bare = asyncio.run(converse(server.url))
        assert asyncio.run(converse(server.url)) == bare
        without, sent = (request.headers for request in server.requests)
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS], len(stream.times_ns)) == ("completed", 4, 4)
    [request] = recorder.requests()
    told = dict(request.attributes or {})
    assert (told[semconv.GEN_AI_PROVIDER_NAME], told[semconv.GEN_AI_USAGE_OUTPUT_TOKENS]) == ("aws.bedrock", 4)
    trace_id, span_id = ids(request.context)
    assert sent["traceparent"] == f"00-{trace_id:032x}-{span_id:016x}-01"
    assert "traceparent" not in without
    running = runtime.running()
    assert running is not None
    assert running.stats.snapshot()["begun"] == {"aiobotocore": 1}


def test_an_invoked_model(recorder: Recorded) -> None:
    async def invoke(url: str) -> list[Any]:
        async with client(url) as made:
            reply = await made.invoke_model_with_response_stream(modelId="m", body=json.dumps({"messages": []}))
            assert type(reply["body"]).__qualname__ == "AioEventStream"
            return [event async for event in reply["body"]]

    with serving(kind="nova") as server:
        assert asyncio.run(invoke(server.url))
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("completed", 4)


def test_an_error_in_the_stream_and_one_before_it(recorder: Recorded) -> None:
    with (
        WireServer([bedrock.token("converse", "word"), bedrock.error()], STREAM) as server,
        pytest.raises(EventStreamError),
    ):
        asyncio.run(converse(server.url))
    refusal = {"Content-Type": "application/json", "x-amzn-ErrorType": "ThrottlingException"}
    with WireServer([b"{}"], refusal, 429) as server, pytest.raises(ClientError):
        asyncio.run(converse(server.url))
    assert [(stream.outcome, len(stream.times_ns)) for stream in recorder.streams()] == [("error", 1), ("error", 0)]
    told = [(request.attributes or {})[semconv.ERROR_TYPE] for request in recorder.requests()]
    assert sorted(map(str, told)) == ["ThrottlingException", "modelStreamErrorException"]


@pytest.mark.parametrize("way", ["break", "close", "cancel"])
def test_a_reader_that_leaves(way: str, recorder: Recorded) -> None:
    gate = Gate()
    first: list[bytes | Gate] = [bedrock.token("converse", WORDS[0]), gate]

    async def read(url: str) -> None:
        async with client(url) as made:
            stream = (await made.converse_stream(modelId="m", messages=MESSAGES))["stream"]
            loop = aiter(stream)
            await anext(loop)
            if way == "close":
                stream.close()
            elif way == "cancel":
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(anext(loop), 0.1)
            else:
                del loop
                gc.collect()
            assert await asyncio.to_thread(otel_llm.flush, WAIT_S)
            gate.open()

    with WireServer(first, STREAM) as server:
        asyncio.run(read(server.url))
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("cancelled", 1)
