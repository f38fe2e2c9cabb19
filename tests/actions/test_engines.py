"""What engines and routers are asked for, byte for byte, as their sources and our measurements have it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from actions.orders import NOW_NS, order
from support.actions.action_receiver import Came, Receiver, Say, receiving

from otel_llm.actions.execute.engines import RouterDrain, SglangAbort, VllmAbort, vllm_ids
from otel_llm.actions.execute.executor import Reply
from otel_llm.config.yaml_file import ConfigError


@pytest.fixture
def engine() -> Iterator[Receiver]:
    with receiving(Receiver()) as made:
        yield made


def nothing() -> None:
    return None


def request(executor: Any, request_id: str | None = "chatcmpl-0123456789abcdef") -> Reply:
    found: Reply = executor.attempt(order(action="abort", request_id=request_id), NOW_NS, 5.0)
    return found


@pytest.mark.parametrize(
    ("request_id", "ids"),
    [
        ("chatcmpl-r1", ["chatcmpl-r1"]),
        ("cmpl-r1-0", ["cmpl-r1-0"]),
        ("cmpl-r1-12", ["cmpl-r1-12"]),
        ("cmpl-abc", ["cmpl-abc-0"]),
        ("r1", ["chatcmpl-r1", "cmpl-r1-0"]),
    ],
)
def test_vllm_knows_a_request_by_its_kind_and_id(engine: Receiver, request_id: str, ids: list[str]) -> None:
    assert vllm_ids(request_id) == ids
    assert request(VllmAbort(engine.url, lambda: "t0ken", "tests"), request_id) == Reply("accepted")
    (came,) = engine.came
    assert (came.method, came.path) == ("POST", "/inference/v1/abort_requests")
    assert json.loads(came.body) == {"request_ids": ids}
    assert came.headers["authorization"] == "Bearer t0ken"


@pytest.mark.parametrize("request_id", [None, "", " ", "a b", "a\nb", "a/b", '"', "é", "-a", "x" * 256])
@pytest.mark.parametrize("kind", [VllmAbort, SglangAbort])
def test_an_id_that_is_none_is_never_sent(engine: Receiver, kind: Any, request_id: str | None) -> None:
    found = request(kind(engine.url, nothing, "tests"), request_id)
    assert found.result == "refused"
    assert engine.came == []


def test_sglang_is_asked_for_one_rid_and_never_for_all(engine: Receiver) -> None:
    assert request(SglangAbort(engine.url, nothing, "tests"), "0123456789abcdef").result == "accepted"
    (came,) = engine.came
    assert (came.path, json.loads(came.body)) == ("/abort_request", {"rid": "0123456789abcdef"})
    assert "authorization" not in came.headers


def test_a_short_rid_may_be_the_beginning_of_others_and_is_not_sent(engine: Receiver) -> None:
    found = request(SglangAbort(engine.url, nothing, "tests"), "0123456789abcde")
    assert found.result == "refused"
    assert "beginning of others" in found.detail
    assert engine.came == []


def test_the_path_is_the_settings_own(engine: Receiver) -> None:
    request(VllmAbort(engine.url, nothing, "tests", path="/v1/requests/cancel"))
    assert engine.came[0].path == "/v1/requests/cancel"


@pytest.mark.parametrize(("status", "result"), [(200, "accepted"), (403, "refused"), (404, "refused"), (500, "again")])
def test_a_status_that_is_no_success_is_said(engine: Receiver, status: int, result: str) -> None:
    engine.answer = lambda came, before: Say(status)
    found = request(VllmAbort(engine.url, nothing, "tests"))
    assert (found.result, found.detail) == (result, "" if status == 200 else f"HTTP {status}")


def test_without_its_token_an_engine_is_not_asked(engine: Receiver) -> None:
    def broken() -> str:
        raise ConfigError("tokens", None, None, "", "no token in this file", "")

    for executor in (VllmAbort(engine.url, broken, "t"), RouterDrain(engine.url, broken, "t", worker="http://w")):
        assert request(executor).result == "refused"
    assert engine.came == []


class Router:
    """The calls of SGLang's router 0.3.2: workers by id; of the vLLM router: by URL in the query."""

    def __init__(self, *urls: str) -> None:
        self.workers = {f"id-{at}": url for at, url in enumerate(urls)}

    def __call__(self, came: Came, before: int) -> Say:
        if (came.method, came.path) == ("GET", "/workers"):
            listed = [{"id": key, "url": url, "is_healthy": True} for key, url in self.workers.items()]
            return Say(200, json.dumps({"workers": listed, "total": len(listed)}).encode())
        if (came.method, came.path) == ("GET", "/list_workers"):
            return Say(200, json.dumps({"urls": list(self.workers.values())}).encode())
        if came.method == "DELETE" and (key := came.path.removeprefix("/workers/")) in self.workers:
            del self.workers[key]
            return Say(202, b'{"status":"accepted"}')
        if came.path == "/remove_worker?url=http%3A%2F%2F10.0.0.2%3A8000":
            self.workers = {key: url for key, url in self.workers.items() if url != "http://10.0.0.2:8000"}
            return Say(200, b"Successfully removed worker")
        return Say(404)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_drained_worker_is_gone_from_the_routers_list_and_no_other_is(engine: Receiver, legacy: bool) -> None:
    router = Router("http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.20:8000")
    engine.answer = router
    drain = RouterDrain(engine.url, nothing, "tests", worker="http://10.0.0.2:8000/", legacy=legacy)
    assert drain.check(5.0) is False
    assert request(drain).result == "accepted"
    assert drain.check(5.0) is True
    assert sorted(router.workers.values()) == ["http://10.0.0.1:8000", "http://10.0.0.20:8000"]


def test_a_worker_that_the_router_does_not_have_is_drained(engine: Receiver) -> None:
    engine.answer = Router("http://10.0.0.1:8000")
    drain = RouterDrain(engine.url, nothing, "tests", worker="http://10.0.0.9:8000")
    assert request(drain) == Reply("done", "the router has no such worker")


@pytest.mark.parametrize(
    "reported", [Say(200, b"[]"), Say(200, b"no"), Say(500), Say(200, b'{"workers":3}'), Say(200, b"[" * 60_000)]
)
def test_a_list_that_cannot_be_read_confirms_nothing(engine: Receiver, reported: Say) -> None:
    engine.answer = lambda came, before: reported
    drain = RouterDrain(engine.url, nothing, "tests", worker="http://10.0.0.9:8000")
    assert drain.check(5.0) is False
    assert request(drain).result in ("refused", "again")
