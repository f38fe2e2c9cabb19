"""Bedrock's streams over the real botocore, against a server that speaks real event streams and checks signatures."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError, EventStreamError, ParamValidationError
from botocore.stub import Stubber
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation.recorded import Recorded, ids
from support.instrumentation.stack_botocore import ACCESS, MESSAGES
from support.instrumentation.wire_server import Sent, WireServer
from support.logs import ours
from support.wires import bedrock

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.stacks.botocore import unknown_models

MODEL = "us.some.model-v1:0"
WORDS = [f"w{number} " for number in range(4)]
STREAM = {"Content-Type": bedrock.CONTENT_TYPE}

# A client that is dropped leaves its connection to the garbage collector, with or without us.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Collect what a test dropped while its own filters of warnings stand."""
    yield
    gc.collect()


def client(url: str, **config: Any) -> Any:
    access = {**ACCESS, "config": ACCESS["config"].merge(Config(**config))}
    return botocore.session.Session().create_client("bedrock-runtime", endpoint_url=url, **access)


def converse(url: str, **config: Any) -> Any:
    return client(url, **config).converse_stream(modelId=MODEL, messages=MESSAGES)["stream"]


def invoke(url: str) -> Any:
    body = json.dumps({"messages": []}).encode()
    return client(url).invoke_model_with_response_stream(modelId=MODEL, body=body)["body"]


def serving(kind: str = "converse") -> WireServer:
    return WireServer(list(bedrock.frames(kind, WORDS)), STREAM)


@pytest.fixture
def server() -> Iterator[WireServer]:
    with serving() as running:
        yield running


def test_a_reply_is_recorded_and_the_caller_gets_what_it_got(server: WireServer) -> None:
    bare = converse(server.url)
    seen = list(bare)
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    try:
        stream = converse(server.url)
        assert (type(stream).__qualname__, type(stream).__module__) == ("EventStream", "botocore.eventstream")
        assert isinstance(stream, type(bare))
        assert list(stream) == seen
        recorded = Recorded(exporter)
        row = recorded.stream()
        [request] = recorded.requests()
    finally:
        otel_llm.uninstrument()
    assert (row.outcome, row.last[semconv.TOKENS], len(row.times_ns)) == ("completed", 4, 4)
    told = dict(request.attributes or {})
    assert request.name == f"chat {MODEL}"
    assert told[semconv.GEN_AI_PROVIDER_NAME] == "aws.bedrock"
    assert (told[semconv.GEN_AI_USAGE_INPUT_TOKENS], told[semconv.GEN_AI_USAGE_OUTPUT_TOKENS]) == (7, 4)
    assert (told[semconv.SERVER_ADDRESS], told[semconv.MEASURED_AT]) == ("127.0.0.1", "client")


@pytest.mark.parametrize("family", list(bedrock.FAMILIES))
def test_an_invoked_model_is_known_by_its_chunks(family: str, recorder: Recorded) -> None:
    with serving(family) as server:
        chunks = [json.loads(event["chunk"]["bytes"]) for event in invoke(server.url)]
    assert bedrock.METRICS in chunks[-1]
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS], len(stream.times_ns)) == ("completed", 4, 4)
    [request] = recorder.requests()
    told = dict(request.attributes or {})
    assert (told[semconv.GEN_AI_USAGE_INPUT_TOKENS], told[semconv.GEN_AI_USAGE_OUTPUT_TOKENS]) == (7, 4)


def test_chunks_that_are_not_known_are_given_up_with_one_warning(
    recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    unknown_models.discard(MODEL)
    with WireServer([bedrock.chunk({"words": [word]}) for word in WORDS], STREAM) as server:
        for _ in range(2):
            assert len(list(invoke(server.url))) == len(WORDS)
    assert [(stream.outcome, stream.times_ns) for stream in recorder.streams()] == [(None, [])] * 2
    assert len(ours(caplog)) == 1
    assert MODEL in caplog.text


def test_reasoning_and_tool_calls_are_tokens_and_a_tool_s_name_is_none(recorder: Recorded) -> None:
    start = {"start": {"toolUse": {"toolUseId": "1", "name": "clock"}}, "contentBlockIndex": 1}
    deltas: list[Any] = [
        {"reasoningContent": {"text": "hm"}},
        {"reasoningContent": {"signature": "x"}},
        {"text": ""},
        {"text": "Now"},
        {"toolUse": {"input": ""}},
        {"toolUse": {"input": "{}"}},
    ]
    pieces = [bedrock.event("contentBlockDelta", {"delta": delta, "contentBlockIndex": 0}) for delta in deltas]
    with WireServer([bedrock.event("contentBlockStart", start), *pieces, *bedrock.after("converse", 3)], STREAM) as s:
        list(converse(s.url))
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("completed", 3)
    kinds = [
        (event.attributes or {}).get(semconv.TOKEN_KIND) for segment in stream.segments for event in segment.events
    ]
    assert [kind for kind in kinds if kind is not None] == ["reasoning", "tool"]


@pytest.mark.parametrize("name", ["modelStreamErrorException", "throttlingException"])
def test_an_error_in_the_stream_is_named_by_its_code(name: str, recorder: Recorded) -> None:
    with (
        WireServer([*map(bedrock.token, ["converse"] * 2, WORDS), bedrock.error(name)], STREAM) as server,
        pytest.raises(EventStreamError),
    ):
        list(converse(server.url))
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("error", 2)
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.ERROR_TYPE] == name


def test_a_refused_call_is_one_failed_request_however_often_it_is_tried(recorder: Recorded) -> None:
    headers = {"Content-Type": "application/json", "x-amzn-ErrorType": "ThrottlingException"}
    with WireServer([b'{"message": "slowly"}'], headers, 429) as server, pytest.raises(ClientError):
        converse(server.url, retries={"total_max_attempts": 2})
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("error", 0)
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.ERROR_TYPE] == "ThrottlingException"
    trace_id, span_id = ids(request.context)
    sent = [attempt.headers["traceparent"] for attempt in server.requests]
    assert sent == [f"00-{trace_id:032x}-{span_id:016x}-01"] * 2


def signed(sent: Sent, host: str) -> bool:
    """Return whether a request's signature is right, as AWS would check it."""
    fields = dict(part.split("=", 1) for part in sent.headers["authorization"].split(" ", 1)[1].split(", "))
    names = fields["SignedHeaders"].split(";")
    headers = {name: sent.headers[name] for name in names}
    request = AWSRequest("POST", f"http://{host}{sent.path}", headers, sent.body)
    request.context["timestamp"] = sent.headers["x-amz-date"]
    credentials = Credentials(ACCESS["aws_access_key_id"], ACCESS["aws_secret_access_key"])
    auth = SigV4Auth(credentials, "bedrock", ACCESS["region_name"])
    again = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    assert not {"traceparent", "x-slo-class"} & {*names}
    return bool(again == fields["Signature"])


def test_trace_and_class_travel_and_the_signature_holds(server: WireServer) -> None:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, slo_class="voice")
    try:
        list(converse(server.url))
        [request] = Recorded(exporter).requests()
    finally:
        otel_llm.uninstrument()
    [sent] = server.requests
    trace_id, span_id = ids(request.context)
    assert sent.headers["traceparent"] == f"00-{trace_id:032x}-{span_id:016x}-01"
    assert sent.headers["x-slo-class"] == "voice"
    assert signed(sent, server.url.partition("//")[2])


def test_what_is_not_recorded(server: WireServer, recorder: Recorded) -> None:
    with suppress_instrumentation():
        assert list(converse(server.url))
    with pytest.raises(ParamValidationError):
        client(server.url).converse_stream(modelId=MODEL, messages=3)
    stubbed = client(server.url)
    with Stubber(stubbed) as stubber:
        stubber.add_response("converse_stream", {"stream": {}}, {"modelId": MODEL, "messages": MESSAGES})
        stubbed.converse_stream(modelId=MODEL, messages=MESSAGES)
    with WireServer([b"{}"], {"Content-Type": "application/json"}) as whole:
        client(whole.url).converse(modelId=MODEL, messages=MESSAGES)
    assert recorder.spans() == ()
    assert all("traceparent" not in sent.headers for sent in [*server.requests, *whole.requests])


def test_a_request_that_is_made_on_the_way_carries_nothing(server: WireServer, recorder: Recorded) -> None:
    def look_up(**_: Any) -> None:
        """Ask another service, as a provider of credentials does."""
        botocore.session.Session().create_client("dynamodb", endpoint_url=other.url, **ACCESS).list_tables()

    with WireServer([b"{}"], {"Content-Type": "application/json"}) as other:
        asks = client(server.url)
        asks.meta.events.register("before-sign.bedrock-runtime", look_up)
        assert list(asks.converse_stream(modelId=MODEL, messages=MESSAGES)["stream"])
    assert recorder.stream().outcome == "completed"
    assert ["traceparent" in request.headers for request in [*other.requests, *server.requests]] == [False, True]
