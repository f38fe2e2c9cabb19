"""LiteLLM's Router, if it is installed: its retries and fallbacks are one request, and its attempts events on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from support.instrumentation.litellm_alone import litellm_alone
from support.instrumentation.recorded import Recorded, Stream, ids
from support.sse_server import Cut, Json, Reply, SseServer, chunk, whole, words

from otel_llm import semconv

pytestmark = pytest.mark.filterwarnings("ignore")

MODES = ("sync", "async")
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "?"}], "stream": True}
OVERLOADED = {"error": {"message": "overloaded", "type": "server_error", "code": 503}}
FAILING = {
    "refused": Reply(status=503),
    "overloaded at once": Reply([OVERLOADED]),
    "overloaded after a role": Reply([chunk({"role": "assistant", "content": ""}), OVERLOADED]),
    "cut before the first token": Reply([chunk({"role": "assistant", "content": ""}), Cut()]),
}
"""Replies that end before the first token."""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with litellm_alone(monkeypatch):
        yield


def router(server: SseServer, *names: str, **settings: Any) -> Any:
    """Return a router over models of the server, which neither retries nor pauses a model unless it is told to."""
    import litellm

    params = {"api_base": server.url, "api_key": "none", "max_retries": 0}
    models = [{"model_name": name, "litellm_params": {"model": f"openai/{name}", **params}} for name in names]
    settings = {"num_retries": 0, "disable_cooldowns": True, "retry_after": 0, **settings}
    return litellm.Router(model_list=models, **settings)


def read(asks: Any, mode: str, **asked: Any) -> tuple[list[Any], str | None]:
    """Return the texts that the caller of a router, or of litellm, got, and the class of the error."""
    got: list[Any] = []

    async def read_async() -> None:
        async for one in await asks.acompletion(**ASKED, **asked):
            got.append(one.choices[0].delta.content)  # noqa: PERF401  what came before an error stays

    try:
        if mode == "sync":
            got.extend(one.choices[0].delta.content for one in asks.completion(**ASKED, **asked))
        else:
            asyncio.run(read_async())
    except Exception as error:  # noqa: BLE001
        return got, type(error).__name__
    return got, None


def only(recorder: Recorded) -> tuple[ReadableSpan, Stream]:
    """Return the one request and the one stream."""
    [request] = recorder.requests()
    return request, recorder.stream()


def attempts(request: ReadableSpan) -> list[dict[str, Any]]:
    return [dict(event.attributes or {}) for event in request.events if event.name == semconv.ATTEMPT_EVENT]


def failing(times: int, reply: Reply) -> Callable[[Json], Reply]:
    """Return what fails some times, and then gives three words."""
    replies = chain(repeat(reply, times), repeat(whole(3)))
    return lambda _: next(replies)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", list(FAILING))
def test_a_fallback_is_the_same_request_and_the_failed_attempt_an_event(
    name: str, mode: str, server: SseServer, request: pytest.FixtureRequest
) -> None:
    server.replies.update({"down": FAILING[name], "good": whole(3)})
    fallbacks = [{"down": ["good"]}]
    bare = read(router(server, "down", "good", fallbacks=fallbacks), mode, model="down")
    recorder: Recorded = request.getfixturevalue("recorder")
    asked = len(server.requests)
    assert read(router(server, "down", "good", fallbacks=fallbacks), mode, model="down") == bare
    row, stream = only(recorder)
    told = dict(row.attributes or {})
    assert (told[semconv.OUTCOME], told[semconv.TOKENS], stream.outcome) == ("completed", 3, "completed")
    assert told[semconv.GEN_AI_REQUEST_MODEL] == "down"
    assert (told[semconv.GEN_AI_PROVIDER_NAME], told[semconv.SERVER_ADDRESS]) == ("openai", "127.0.0.1")
    [attempt] = attempts(row)
    assert attempt[semconv.ATTEMPT_MODEL] == "openai/down"
    assert "Error" in attempt[semconv.ERROR_TYPE]
    trace_id, span_id = ids(row.context)
    carried = [dict(headers).get("traceparent") for headers in server.headers[asked:]]
    assert carried == [f"00-{trace_id:032x}-{span_id:016x}-01"] * 2


@pytest.mark.parametrize("mode", MODES)
def test_the_wait_for_the_first_token_begins_at_the_first_attempt(
    mode: str, server: SseServer, recorder: Recorded
) -> None:
    server.replies["m"] = failing(2, Reply(status=503))
    got, error = read(router(server, "m", num_retries=2), mode, model="m")
    assert ([text for text in got if text], error) == (["w0 ", "w1 ", "w2 "], None)
    row, stream = only(recorder)
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("completed", 3)
    failed = [event.timestamp for event in row.events if event.name == semconv.ATTEMPT_EVENT]
    assert len(failed) == 2
    assert (row.start_time or 0) <= failed[0] <= failed[1] <= stream.times_ns[0]


@pytest.mark.parametrize("mode", MODES)
def test_where_all_attempts_fail_the_row_is_one_error(mode: str, server: SseServer, recorder: Recorded) -> None:
    server.replies.update({"down": Reply(status=503), "worse": Reply(status=500)})
    got, error = read(router(server, "down", "worse", fallbacks=[{"down": ["worse"]}]), mode, model="down")
    assert (got, error) != ([], None)
    row, stream = only(recorder)
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("error", 0)
    assert [attempt[semconv.ATTEMPT_MODEL] for attempt in attempts(row)] == ["openai/down"]


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_breaks_after_its_first_token_keeps_what_was_read(
    mode: str, server: SseServer, request: pytest.FixtureRequest
) -> None:
    server.replies.update({"down": Reply([*words(2), OVERLOADED]), "good": whole(3)})
    fallbacks = [{"down": ["good"]}]
    bare = read(router(server, "down", "good", fallbacks=fallbacks), mode, model="down")
    recorder: Recorded = request.getfixturevalue("recorder")
    assert read(router(server, "down", "good", fallbacks=fallbacks), mode, model="down") == bare
    _, stream = only(recorder)
    words_read = len([text for text in bare[0] if text])
    assert stream.last[semconv.TOKENS] == words_read >= 2
    assert stream.outcome == ("completed" if bare[1] is None else "error")


@pytest.mark.parametrize("mode", MODES)
def test_a_router_without_a_failure_is_one_row_without_an_event(
    mode: str, server: SseServer, recorder: Recorded
) -> None:
    server.replies["m"] = whole(3)
    read(router(server, "m"), mode, model="m")
    row, stream = only(recorder)
    assert (stream.outcome, stream.last[semconv.TOKENS], list(row.events)) == ("completed", 3, [])


@pytest.mark.parametrize("mode", MODES)
def test_the_retries_of_one_completion_are_one_row(mode: str, server: SseServer, recorder: Recorded) -> None:
    import litellm

    server.replies["m"] = failing(1, Reply(status=503))
    model = {"model": "openai/m", "api_base": server.url, "api_key": "none", "max_retries": 0}
    assert read(litellm, mode, num_retries=2, **model)[1] is None
    _, stream = only(recorder)
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("completed", 3)


def test_two_requests_of_a_router_at_once_are_two_rows(server: SseServer, recorder: Recorded) -> None:
    server.replies.update({"down": FAILING["overloaded at once"], "good": whole(3)})
    asks = router(server, "down", "good", fallbacks=[{"down": ["good"]}])

    async def ask(model: str) -> list[Any]:
        return [one async for one in await asks.acompletion(model=model, **ASKED)]

    async def both() -> None:
        await asyncio.gather(ask("down"), ask("good"), ask("down"))

    asyncio.run(both())
    assert [len(attempts(row)) for row in recorder.requests()].count(1) == 2
    assert [(stream.outcome, stream.last[semconv.TOKENS]) for stream in recorder.streams()] == [("completed", 3)] * 3


def test_hooks_of_the_router_are_removed(recorder: Recorded) -> None:
    import litellm

    import otel_llm

    hooked = litellm.Router.completion, litellm.Router.acompletion
    assert all("otel_llm" in call.__code__.co_filename for call in hooked)
    otel_llm.uninstrument()
    bare = litellm.Router.completion, litellm.Router.acompletion
    assert not any("otel_llm" in call.__code__.co_filename for call in bare)
    assert recorder.exporter.get_finished_spans() == ()
