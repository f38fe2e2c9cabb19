"""`POST /v1/actions`: what signed actions do to streams and backends, and what is answered to those that are not."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.pausing import owned_of
from support.relay.readers import Reply, read
from support.relay.rig import Rig, rig
from support.relay.signed_actions import SECRET, SETTINGS, ask, event, send, signed, write_secret

from otel_llm.actions.execute.action_receiver import MOST_BODY_BYTES, Admission
from otel_llm.relay.command_receiver import CommandReceiver
from otel_llm.relay.deciding.command_reader import CommandReader
from otel_llm.shared.clock import FakeClock

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 20,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "tell me"}],
}
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
RELEASE_S = 10.0


@asynccontextmanager
async def relay(folder: Path, *engines: FakeEngine, more: str = "", inner: str = "") -> AsyncIterator[Rig]:
    """Run a relay of two engines that takes signed actions."""
    write_secret(folder)
    text = SETTINGS.replace("}", f", {inner}}}") if inner else SETTINGS
    async with rig(folder, *(engines or (FakeEngine(), FakeEngine())), settings=text + more) as running:
        yield running


def go(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    asyncio.run(run())


class Stalled:
    """A stream whose backend has stalled behind some chunks; its client sent a trace context."""

    def __init__(self, running: Rig, after: int = 9, body: dict[str, Any] = CHAT, slo_class: str | None = None) -> None:
        self.running = running
        self.headers = {} if slo_class is None else {"x-slo-class": slo_class}
        self.body = body
        self.fault = Fault("stall", after=after)
        self.reading: asyncio.Task[Reply] | None = None
        self.source = ""
        self.own: tuple[str, str] = ("", "")

    async def begin(self, span: str = SPAN) -> Stalled:
        """Begin, and wait until the stall is there and the relay shows the stream."""
        before = {row["span_id"] for row in await rows(self.running)}
        self.running.fail_first(self.fault)
        headers = {**self.headers, "traceparent": f"00-{TRACE}-{span}-01"}
        self.reading = asyncio.create_task(
            read(self.running.session, f"{self.running.url}/v1", self.body, headers=headers)
        )
        await asyncio.wait_for(self.fault.reached.wait(), WAIT_S)
        async with asyncio.timeout(WAIT_S):
            while not (new := [row for row in await rows(self.running) if row["span_id"] not in before]):
                await asyncio.sleep(0.005)
        await self.running.caught_up()
        self.own, self.source = (new[0]["trace_id"], new[0]["span_id"]), new[0]["instance"]
        return self

    @property
    def other(self) -> str:
        return "b" if self.source == "a" else "a"

    async def reply(self) -> Reply:
        assert self.reading is not None
        return await asyncio.wait_for(self.reading, WAIT_S)

    async def release(self) -> Reply:
        self.fault.released.set()
        return await self.reply()


async def rows(running: Rig) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await running.get("/v1/streams"))["streams"]
    return found


async def draining(running: Rig) -> list[str]:
    return [one["name"] for one in (await running.get("/v1/backends"))["backends"] if one["draining"]]


async def received(running: Rig) -> dict[tuple[str, str], float]:
    name = "otel_llm_relay_received_actions_total{"
    found = {}
    for sample, value in (await running.metrics()).items():
        if sample.startswith(name):
            labels = dict(one.split("=") for one in sample.removeprefix(name).rstrip("}").split(","))
            found[labels["action"].strip('"'), labels["result"].strip('"')] = value
    return found


def test_without_a_secret_there_is_no_such_path(tmp_path: Path) -> None:
    async def test() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            body = json.dumps(event("drain", instance="a")).encode()
            url = f"{running.web}/v1/actions"
            async with running.session.post(url, data=body, headers=signed(body, "act_1")) as response:
                assert response.status == 404
            assert await draining(running) == []

    go(test)


def test_a_drain_is_done_once_and_answered_alike(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            action = event("drain", instance="b")
            assert await ask(running, action) == (200, {"result": "done", "detail": ""})
            assert await draining(running) == ["b"]
            async with running.session.post(f"{running.web}/v1/backends/b/undrain", json={}) as response:
                assert response.status == 200
            assert await ask(running, action) == (200, {"result": "done", "detail": ""})
            assert await draining(running) == []
            assert await ask(running, event("drain", 2, instance="b")) == (200, {"result": "done", "detail": ""})
            assert await draining(running) == ["b"]
            found = await received(running)
        assert found == {("drain", "done"): 2, ("other", "repeated"): 1}

    go(test)


@pytest.mark.parametrize("by", ["the relay's span", "the client's span"])
def test_a_stream_is_moved_and_its_text_is_whole(tmp_path: Path, by: str) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            undisturbed = await running.direct(CHAT)
            stalled = await Stalled(running).begin()
            span = stalled.own if by == "the relay's span" else (TRACE, SPAN)
            assert stalled.own[0] == TRACE
            action = event("migrate", span=span, arguments={"to": "spread"}, rule="Mover\x1b[31m" + "x" * 300)
            status, answer = await ask(running, action)
            assert (status, answer) == (
                200,
                {"result": "done", "detail": f"moved from {stalled.source} to {stalled.other}"},
            )
            reply = await stalled.reply()
            assert reply.content() == undisturbed.content()
            assert reply.done
        requests = [one for one in running.recorded.requests() if one.parent is not None]
        (moved,) = [dict(one.attributes or {}) for one in requests[0].events if one.name == "otel_llm.migrated"]
        assert moved["rule"] == "Mover\\u{1b}[31m" + "x" * 189 + "…"
        assert (moved["from"], moved["to"]) == (stalled.source, stalled.other)

    go(test)


def test_an_abort_is_done_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            stalled = await Stalled(running).begin()
            action = event("abort", span=(TRACE, SPAN), instance=stalled.source)
            assert (await ask(running, action))[1]["result"] == "done"
            reply = await stalled.reply()
            assert [one["type"] for one in reply.errors] == ["aborted"]
            again = await ask(running, event("abort", 2, span=(TRACE, SPAN), instance=stalled.source))
            assert again == (200, {"result": "unknown_request", "detail": "no such request is open here"})

    go(test)


def test_two_requests_of_one_client_span_are_ambiguous_and_each_has_its_own(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            one, two = await Stalled(running).begin(), await Stalled(running).begin()
            for number, verb in enumerate(("migrate", "abort", "preempt")):
                status, answer = await ask(running, event(verb, number, span=(TRACE, SPAN)))
                assert (status, answer["result"]) == (200, "refused")
                assert answer["detail"] == "ambiguous: 2 requests of this span are open here"
            assert (await ask(running, event("abort", 7, span=one.own)))[1]["result"] == "done"
            assert (await one.reply()).errors
            assert (await ask(running, event("migrate", 8, span=(TRACE, SPAN))))[1]["result"] == "done"
            assert (await two.reply()).done

    go(test)


def test_what_takes_longer_has_begun_and_is_a_conflict_meanwhile(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            stalled = await Stalled(running).begin()
            slow = Fault("slow_prefill")
            running.fail_first(slow)
            action = event("migrate", span=stalled.own, arguments={"to": "least_load"})
            first = asyncio.create_task(ask(running, action))
            await asyncio.wait_for(slow.reached.wait(), WAIT_S)
            if not first.done():  # a busy machine may have let the answer's time pass
                status, answer = await ask(running, action)
                assert (status, answer["result"]) in ((409, "accepted"), (200, "accepted"))
            assert await first == (200, {"result": "accepted", "detail": "begun"})
            assert await ask(running, action) == (200, {"result": "accepted", "detail": "begun"})
            # Another action for the same request waits for nothing.
            _, answer = await ask(running, event("migrate", 2, span=stalled.own, arguments={"to": "least_load"}))
            assert answer == {"result": "refused", "detail": "budget: act_1 is open for this request"}
            slow.released.set()
            assert (await stalled.reply()).done

    go(test)


def test_a_source_that_goes_on_first_refutes(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            stalled = await Stalled(running).begin()
            slow = Fault("slow_prefill")
            running.fail_first(slow)
            asking = asyncio.create_task(ask(running, event("migrate", span=stalled.own)))
            await asyncio.wait_for(slow.reached.wait(), WAIT_S)
            assert [row["instance"] for row in await rows(running)] == [stalled.source]
            reply = await stalled.release()
            assert reply.done
            _, answer = await asking
            # On a busy machine the answer may have been due before.
            assert answer["result"] in ("refused", "accepted")
            if answer["result"] == "refused":
                assert answer["detail"] == "refuted: the source went on first"

    go(test)


def test_a_stream_that_ends_while_it_is_moved(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            stalled = await Stalled(running).begin()
            slow = Fault("slow_prefill")
            running.fail_first(slow)
            asking = asyncio.create_task(ask(running, event("migrate", span=stalled.own)))
            await asyncio.wait_for(slow.reached.wait(), WAIT_S)
            # One action at a time for a request, whatever it is.
            _, answer = await ask(running, event("abort", 2, span=stalled.own))
            assert answer == {"result": "refused", "detail": "budget: act_1 is open for this request"}
            assert stalled.reading is not None
            stalled.reading.cancel()
            _, answer = await asking
            # On a busy machine the answer may have been due before.
            assert answer in (
                {"result": "refused", "detail": "the stream is over"},
                {"result": "accepted", "detail": "begun"},
            )
            async with asyncio.timeout(WAIT_S):
                while await rows(running) or (await running.metrics())["otel_llm_relay_actions_open"]:
                    await asyncio.sleep(0.01)
            _, answer = await ask(running, event("migrate", 3, span=stalled.own))
            assert answer["result"] == "unknown_request"
            assert (await running.metrics())["otel_llm_relay_internal_errors_total"] == 0

    go(test)


LONG = {**CHAT, "max_tokens": 200}


def paused(one: Stalled) -> dict[str, str]:
    return {"result": "done", "detail": f"paused {one.own[0]}/{one.own[1]}"}


def test_whom_a_preempt_takes(tmp_path: Path) -> None:
    """The first candidate that can be paused, else the relay's own choice, the largest runway; or the one request."""

    async def test() -> None:
        # Nothing goes on by itself: who is paused stays so until all have been asked for, and its backend has no fault.
        async with relay(tmp_path, FakeEngine(), more="preempt: {calm: 1h}\n") as running:
            undisturbed = await running.direct(LONG)
            poor = await Stalled(running, 5, LONG).begin("1" * 16)
            least = await Stalled(running, 150, LONG).begin("2" * 16)
            most = await Stalled(running, 190, LONG).begin("3" * 16)
            third = await Stalled(running, 170, LONG).begin("4" * 16)
            gone = ("0" * 32, "0" * 16)
            no_other = {"result": "refused", "detail": "no stream can be paused"}
            # The request that it is about, when there are no candidates, and no other.
            assert await ask(running, event("preempt", 1, span=poor.own, instance="a")) == (200, no_other)
            assert (await ask(running, event("preempt", 2, span=(TRACE, "4" * 16))))[1] == paused(third)
            candidates = [gone, poor.own, third.own, (TRACE, "2" * 16), most.own]
            assert (await ask(running, event("preempt", 3, candidates=candidates, instance="z")))[1] == paused(least)
            # Of the candidates none can be paused: on a backend of another relay that is all.
            rest = [poor.own, least.own]
            assert await ask(running, event("preempt", 4, candidates=rest, instance="z")) == (200, no_other)
            assert (await ask(running, event("preempt", 5, candidates=rest, instance="a")))[1] == paused(most)
            assert await ask(running, event("preempt", 6, instance="a")) == (200, no_other)
            assert {row["span_id"] for row in await rows(running) if row["paused"]} == {
                one.own[1] for one in (least, most, third)
            }
            for pause in owned_of(running).pauses:
                pause.wake("calm")
            for one in (poor, least, most, third):
                reply = await one.release()
                assert (reply.done, reply.content()) == (True, undisturbed.content())

    go(test)


def test_a_candidate_that_is_on_another_backend_by_now_is_not_taken(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path, more="preempt: {calm: 50ms}\n") as running:
            here = await Stalled(running, 150, LONG).begin("1" * 16)
            there = await Stalled(running, 190, LONG).begin("2" * 16)
            assert here.source != there.source
            asked = event("preempt", 1, candidates=[there.own, here.own], instance=here.source)
            assert (await ask(running, asked))[1] == paused(here)
            asked = event("preempt", 2, candidates=[there.own], instance=here.source)
            assert (await ask(running, asked))[1] == {"result": "refused", "detail": "no stream can be paused"}
            for one in (here, there):
                assert (await one.release()).done

    go(test)


def test_the_relays_own_choice_is_none_of_a_higher_class_than_the_request(tmp_path: Path) -> None:
    classes = "{low: {priority: 0}, high: {priority: 1}}"
    (tmp_path / "slo.yaml").write_text(f"version: 1\ndefault: low\nclasses: {classes}\n")

    async def test() -> None:
        write_secret(tmp_path)
        text = SETTINGS + "preempt: {calm: 50ms}\n"
        async with rig(tmp_path, FakeEngine(), settings=text, slo=tmp_path / "slo.yaml") as running:
            low = await Stalled(running, 150, LONG, "low").begin("1" * 16)
            high = await Stalled(running, 190, LONG, "high").begin("2" * 16)
            candidates = [("0" * 32, "0" * 16)]
            _, answer = await ask(running, event("preempt", 1, span=low.own, candidates=candidates, instance="a"))
            assert answer == {"result": "refused", "detail": "no stream can be paused"}
            _, answer = await ask(running, event("preempt", 2, span=high.own, candidates=candidates, instance="a"))
            assert answer == paused(low)
            for one in (low, high):
                assert (await one.release()).done

    go(test)


def test_the_kill_switch_of_the_relay_stops_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path, inner="kill_switch: off") as running:
            (tmp_path / "off").touch()
            refused = {"result": "refused", "detail": "shadow: the kill switch is there"}
            assert await ask(running, event("drain", instance="a")) == (200, refused)
            assert await draining(running) == []
            (tmp_path / "off").unlink()
            assert (await ask(running, event("drain", 2, instance="a")))[1]["result"] == "done"

    go(test)


def test_a_relay_that_stops_refuses(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            stalled = await Stalled(running).begin()
            async with aiohttp.ClientSession() as kept, asyncio.timeout(WAIT_S):
                running.session, session = kept, running.session
                ready = f"{running.web}/readyz"
                async with kept.get(ready) as response:
                    assert response.status == 200
                running.service.stop.set()
                while response.status == 200:  # on the same connection: no other is accepted any more
                    async with kept.get(ready) as response:
                        await response.read()
                assert response.status == 503
                refused = {"result": "refused", "detail": "the relay is stopping"}
                assert await ask(running, event("abort", span=stalled.own)) == (200, refused)
                running.session = session
                assert (await stalled.release()).done

    go(test)


@pytest.mark.parametrize(
    ("verb", "of", "result", "detail"),
    [
        ("drain", {"instance": "z"}, "refused", "no backend is called 'z'"),
        ("drain", {}, "refused", "no backend is called ''"),
        ("scale", {"instance": "a"}, "refused", "a relay does no `scale`"),
        ("alert", {"instance": "a"}, "refused", "a relay does no `alert`"),
        ("migrate", {"instance": "a"}, "refused", "`migrate` needs a request"),
        ("abort", {"instance": "a"}, "refused", "`abort` needs a request"),
        ("migrate", {"span": ("f" * 32, "f" * 16)}, "unknown_request", "no such request is open here"),
        ("abort", {"span": ("", "x")}, "unknown_request", "no such request is open here"),
        ("preempt", {"span": (TRACE, SPAN)}, "unknown_request", "no such request is open here"),
        ("preempt", {"candidates": [(TRACE, SPAN)]}, "unknown_request", "none of the candidates is open here"),
        ("preempt", {}, "refused", "no backend is called ''"),
        ("drain", {"instance": "a", "expires_in_s": -1}, "refused", "expired"),
    ],
)
def test_what_is_not_done_says_why(tmp_path: Path, verb: str, of: dict[str, Any], result: str, detail: str) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            assert await ask(running, event(verb, **of)) == (200, {"result": result, "detail": detail})
            assert await draining(running) == []

    go(test)


def test_only_places_that_a_rule_may_name_are_gone_to(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            stalled = await Stalled(running).begin()
            places: list[Any] = ["somewhere", 7, None, ["spread"], {}]
            for number, to in enumerate(places):
                status, answer = await ask(running, event("migrate", number, span=stalled.own, arguments={"to": to}))
                assert (status, answer["result"]) == (200, "refused")
                assert answer["detail"] == "`to` is none of least_load, pack, safest, spread"
            assert (await stalled.release()).done
        assert [row for row in running.decisions() if row["action"] == "migrate"] == []

    go(test)


def test_what_is_forged_or_no_action_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            action = event("drain", instance="a")
            body = json.dumps(action).encode()
            now_s = time.time()
            deep = b"[" * 100_000 + b"]" * 100_000
            cases: list[tuple[bytes, dict[str, str], int]] = [
                (body, {}, 401),
                (body, signed(body, "act_1", secret=bytes(32)), 401),
                (body.replace(b'"a"', b'"b"'), signed(body, "act_1"), 401),
                (body, signed(body, "act_1", at_s=now_s - 301), 401),
                (body, signed(body, "act_1", at_s=now_s + 301 + WAIT_S), 401),
                (body, {**signed(body, "act_1"), "webhook-id": "act_2"}, 401),
                (body, {**signed(body, "act_1"), "webhook-timestamp": "now"}, 401),
                (body, signed(body, "act_2"), 400),
                (b"", signed(b"", "act_1"), 400),
                (b"no json", signed(b"no json", "act_1"), 400),
                (deep, signed(deep, "act_1"), 400),
                (b"x" * (MOST_BODY_BYTES + 1), {}, 413),
                (b"x" * (MOST_BODY_BYTES * 3), {}, 413),
            ]
            for sent, headers, status in cases:
                found = await send(running, sent, headers)
                assert (found[0], found[1]["result"]) == (status, None), (sent[:50], headers)
            assert await draining(running) == []
            assert await received(running) == {("other", "rejected"): len(cases)}
            assert (await ask(running, action, at_s=time.time() - 200))[1]["result"] == "done"

    go(test)


def test_a_message_for_another_relay_or_start_up_is_done_nowhere(tmp_path: Path) -> None:
    """It was signed by a holder of the secret: for the relay beside this one, or before a restart."""

    async def test() -> None:
        async with relay(tmp_path) as running:
            action = event("drain", instance="a")
            for names in ({}, {"relay": ""}, {"relay": "/otel-llm/relay/another"}, {"relay": 1}):
                sent = {**action, "data": {**action["data"], **names}}
                body = json.dumps(sent).encode()
                status, answer = await send(running, body, signed(body, action["id"]))
                assert (status, answer["result"], answer["relay"]) == (200, "refused", running.service.name)
            assert await draining(running) == []
            assert (await ask(running, action))[1]["result"] == "done"
            assert await draining(running) == ["a"]

    go(test)


def test_a_message_without_a_signature_learns_no_name(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            status, answer = await send(running, json.dumps(event("drain", instance="a")).encode(), {})
            assert (status, "relay" in answer) == (401, False)

    go(test)


def test_a_body_that_is_compressed_is_not_what_was_signed(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            body = json.dumps(event("drain", instance="a")).encode()
            bomb = gzip.compress(bytes(64 << 20))
            for sent, signs in ((gzip.compress(body), body), (bomb, bomb)):
                headers = {**signed(signs, "act_1"), "content-encoding": "gzip"}
                status, _ = await send(running, sent, headers)
                assert status in (400, 401)
            assert await draining(running) == []

    go(test)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["a", SPAN, TRACE]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_any_field_of_any_type_is_answered(tmp_path: Path) -> None:
    """Hundreds of signed events, each with one or two fields of another kind, at one relay: it stays as it is."""

    async def test() -> None:
        async with relay(tmp_path) as running:
            stalled = await Stalled(running).begin()
            loop, number = asyncio.get_running_loop(), iter(range(10_000))

            @settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
            @given(st.data())
            def change(data: st.DataObject) -> None:
                verb = data.draw(st.sampled_from(["migrate", "preempt", "abort", "drain", "scale"]))
                gone = ("0" * 32, "0" * 16)
                made = event(verb, next(number), span=gone, instance="nowhere", candidates=[gone])
                made["data"]["relay"] = running.service.name
                for _ in range(data.draw(st.integers(1, 2))):
                    places = [made, made["data"], made["data"].get("request"), made["data"].get("labels")]
                    place = data.draw(st.sampled_from([one for one in places if isinstance(one, dict) and one]))
                    key = data.draw(st.sampled_from(sorted(place)))
                    place[key] = data.draw(_JSON)
                    if not isinstance(made.get("data"), dict):
                        break
                body = json.dumps(made).encode()
                message_id = made["id"] if isinstance(made["id"], str) and made["id"].isalnum() else "act_x"
                asked = asyncio.run_coroutine_threadsafe(send(running, body, signed(body, message_id)), loop)
                status, answer = asked.result(WAIT_S)
                assert status in (200, 400), answer
                assert answer["result"] in (None, "done", "refused", "unknown_request")

            await asyncio.to_thread(change)
            reply = await stalled.release()
            assert reply.done or reply.errors  # a change may have named it: then it was moved or aborted
            assert (await running.metrics())["otel_llm_relay_internal_errors_total"] == 0

    go(test)


def nothing(*_: object) -> None:
    pass


@asynccontextmanager
async def alone(**limits: Any) -> AsyncIterator[tuple[int, list[tuple[str, str]]]]:
    """Run a receiver without a relay; the port, and what it counted."""
    counted: list[tuple[str, str]] = []
    receiver = CommandReceiver(
        Admission([SECRET]),
        FakeClock(),
        CommandReader(lambda span: (), lambda name: False),
        nothing,
        lambda: False,
        lambda action, result: counted.append((action, result)),
        **limits,
    )
    app = web.Application()
    app.router.add_post("/v1/actions", receiver.post)
    server = TestServer(app)
    await server.start_server()
    try:
        assert server.port is not None
        yield server.port, counted
    finally:
        await server.close()


async def begin(
    port: int, body: bytes = b"x", announced: int = 10
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send headers, and a part of the body that they announce."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/actions HTTP/1.1\r\nHost: a\r\nContent-Length: {announced}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


async def status_of(reader: asyncio.StreamReader) -> int:
    line = await asyncio.wait_for(reader.readline(), WAIT_S)
    return int(line.split()[1])


def test_a_body_is_not_waited_for_for_ever() -> None:
    async def test() -> None:
        async with alone(body_s=0.05) as (port, counted):
            reader, writer = await begin(port)
            assert await status_of(reader) == 408
            writer.close()
            assert counted == [("other", "rejected")]

    go(test)


def test_no_more_of_a_body_is_waited_for_than_is_allowed() -> None:
    async def test() -> None:
        async with alone() as (port, _):
            reader, writer = await begin(port, bytes(MOST_BODY_BYTES + 1), 100_000_000)
            assert await status_of(reader) == 413
            writer.close()

    go(test)


def test_a_few_bodies_are_read_at_one_time() -> None:
    async def test() -> None:
        async with alone(most_reading=1) as (port, counted):
            first, writing = await begin(port)
            async with asyncio.timeout(WAIT_S):
                while True:  # until the first is being read
                    second, other = await begin(port, b"0123456789")
                    status = await status_of(second)
                    other.close()
                    if status == 429:
                        break
                    assert status == 401
            writing.write(b"123456789")
            assert await status_of(first) == 401
            writing.close()
            third, last = await begin(port, b"0123456789")
            assert await status_of(third) == 401
            last.close()
            assert set(counted) == {("other", "rejected")}

    go(test)


def test_a_body_that_is_cut_is_no_trouble() -> None:
    async def test() -> None:
        async with alone() as (port, _):
            _, writer = await begin(port)
            writer.close()
            await writer.wait_closed()
            reader, writer = await begin(port, b"0123456789")
            assert await status_of(reader) == 401
            writer.close()

    go(test)


def test_new_secrets_count_from_a_reload_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            new = bytes(range(1, 33))
            file = write_secret(tmp_path, new)
            assert (await ask(running, event("drain", instance="a"), secret=new))[0] == 401
            line, refused = running.service.reload()
            assert line is not None
            assert "secrets of actions (1)" in line
            assert refused == []
            assert (await ask(running, event("drain", instance="a")))[0] == 401
            assert (await ask(running, event("drain", instance="a"), secret=new))[1]["result"] == "done"
            file.write_text("no secret\n")
            _, refused = running.service.reload()
            (reported,) = refused
            assert reported.startswith("secrets of actions not reloaded, the old ones stay: ")
            assert "no secret" not in reported
            assert (await ask(running, event("drain", 2, instance="b"), secret=new))[1]["result"] == "done"

    go(test)


def test_a_secret_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    async def test() -> None:
        async with relay(tmp_path) as running:
            assert running.service.warnings() == []
            (tmp_path / "relay.secret").chmod(0o644)
            (warning,) = running.service.warnings()
            assert "relay.secret" in warning

    go(test)
