"""The feed: one collection for all viewers, a bounded mailbox each; slow viewers are dropped, hostile text is data."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from support.live_feed import HOSTILE, Fed, events
from support.patience import WAIT_S

from otel_llm.formats.records import StreamKey
from otel_llm.live.feed import MOST_AGE_S, VERDICT_COLUMNS, event
from otel_llm.live.history import Load
from otel_llm.live.page import FILE_HEADERS, static_files
from otel_llm.live.selection import Filter, Selection, key_text
from otel_llm.live.viewers import MOST_UNSENT, Viewer
from otel_llm.shared.errors import UnavailableError

KEY, OTHER = (b"\1" * 16, b"\2" * 8, "default", 0), (b"\3" * 16, b"\4" * 8, "default", 1)
CHAT = Selection(Filter("chat"))
TURNS = 10
"""Turns of the event loop, more than what was offered needs until it is read."""


async def received(viewer: Viewer) -> list[bytes]:
    """Return the messages that the feed has offered to a viewer until now."""
    found: list[bytes] = []

    async def read() -> None:
        async for message in viewer.messages():
            found.append(message)  # noqa: PERF401 - they are kept when it is cancelled

    reading = asyncio.create_task(read())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading})
    return found


async def next_of(viewer: Viewer) -> bytes:
    """Wait for a message that the feed's own thread offers."""
    async with asyncio.timeout(WAIT_S):
        return await anext(viewer.messages())


def row_of(key: StreamKey, **more: Any) -> dict[str, Any]:
    known = {"trace_id": key[0].hex(), "span_id": key[1].hex(), "tenant": key[2], "choice": key[3]}
    return {**dict.fromkeys([*VERDICT_COLUMNS, "start_unix_nano"]), **known, **more}


def test_a_viewer_gets_the_history_once_and_then_what_is_new() -> None:
    async def go() -> None:
        fed = Fed(loads={("chat", "client"): Load(2, 1)}, fleet={"in_flight": 2, "waiting": 1})
        feed = fed.feed()
        feed.tick()
        fed.clock.pass_s(1)
        feed.tick()
        viewer = feed.join(Selection())
        fed.clock.pass_s(1)
        feed.tick()
        feed.tick()
        first, second = map(events, await received(viewer))
        assert [name for name, _ in first] == ["history", "fleet", "page"]
        history, fleet = first[0][1], first[1][1]
        assert (history["service"], history["links"]) == ("test", {"metrics": "/metrics"})
        assert [one[1] for one in history["samples"]] == [[0, 2, 1, 0, 0, 0, 0.0, 0.0]] * 2
        assert fleet["sample"][0] == history["samples"][1][0] + 1
        assert (fleet["keys"], fleet["left_out"], fleet["waiting"]) == ([["chat", "client"]], 0, 1)
        assert [name for name, _ in second] == ["fleet", "page"]

    asyncio.run(go())


def test_all_viewers_share_one_collection_and_those_of_one_selection_its_bytes() -> None:
    async def go() -> None:
        fed = Fed()
        feed = fed.feed()
        feed.tick()
        viewers = [feed.join(chosen) for chosen in (CHAT, CHAT, Selection(), CHAT._replace(stream=KEY))]
        feed.tick()
        assert fed.asked == [(set(), set()), ({Filter("chat"), Filter()}, {KEY})]
        one, same, other, following = [(await received(viewer))[0] for viewer in viewers]
        assert one is same
        assert events(one)[-1][1]["filter"] == list(Filter("chat"))
        assert events(other)[-1][1]["filter"] == list(Filter())
        assert events(following)[:-1] == events(one)
        assert events(following)[-1] == ("stream", {"key": key_text(KEY), "verdict": None})

    asyncio.run(go())


def test_there_is_room_for_so_many_viewers_and_for_the_next_when_one_leaves() -> None:
    async def go() -> None:
        feed = Fed().feed(most_viewers=2)
        first, _ = feed.join(Selection()), feed.join(Selection())
        with pytest.raises(UnavailableError, match="2 viewers"):
            feed.join(Selection())
        feed.leave(first)
        feed.join(Selection())
        with pytest.raises(UnavailableError):
            feed.join(Selection())
        assert feed.viewers == 2

    asyncio.run(go())


def test_a_slow_viewer_is_dropped_with_a_bounded_mailbox_and_the_others_miss_nothing() -> None:
    async def go() -> None:
        feed = Fed().feed(most_viewers=2)
        slow, quick = feed.join(Selection()), feed.join(Selection())
        seen = 0
        for _ in range(MOST_UNSENT + 3):
            feed.tick()
            await asyncio.sleep(0)
            seen += len(await received(quick))
        feed.tick()
        assert (slow.overrun, slow.closed, quick.closed) == (True, True, False)
        assert seen == MOST_UNSENT + 3
        assert (feed.dropped, feed.viewers) == (1, 1)
        assert await received(slow) == [], "a viewer that is dropped gets no more"
        feed.join(Selection())

    asyncio.run(go())


def test_an_old_viewer_is_closed_so_that_it_brings_its_token_again() -> None:
    async def go() -> None:
        fed = Fed()
        feed = fed.feed()
        old = feed.join(Selection())
        fed.clock.pass_s(MOST_AGE_S)
        feed.tick()
        assert len(await received(old)) == 1
        young = feed.join(Selection())
        fed.clock.pass_s(1)
        feed.tick()
        assert await received(old) == []
        assert (feed.viewers, feed.dropped, old.closed, young.closed) == (1, 0, True, False)

    asyncio.run(go())


def test_a_busy_service_is_said_and_takes_no_sample() -> None:
    async def go() -> None:
        fed = Fed(loads={("chat", "client"): Load(1)})
        feed = fed.feed()
        viewer = feed.join(Selection())
        fed.problem = TimeoutError()
        feed.tick()
        fed.problem = None
        feed.tick()
        busy, later = map(events, await received(viewer))
        assert busy == [("busy", {})]
        assert [name for name, _ in later] == ["history", "fleet", "page"]
        assert later[0][1]["samples"] == []

    asyncio.run(go())


def test_a_followed_stream_is_shown_then_its_verdict_and_no_more_rows_are_made_for_it() -> None:
    async def go() -> None:
        made: list[str] = []

        def row(key: StreamKey, name: str) -> dict[str, Any]:
            made.append(name)
            return row_of(key, outcome=name, met=False)

        fed = Fed(streams={KEY: {"row": {"tokens": 3}, "curve": {}}})
        feed = fed.feed()
        viewer = feed.join(Selection(stream=KEY))
        feed.tick()
        assert made == []
        fed.streams.clear()
        recent: list[Callable[[], Mapping[str, Any]]] = [partial(row, KEY, "ours"), partial(row, OTHER, "another's")]
        recent += [lambda: row_of(OTHER, choice=None, outcome="of a foreign span")] * 12
        fed.recent = list(recent)
        feed.tick()
        assert made == ["another's", "ours"]
        fed.recent = recent[2:]  # it is no longer among the last
        feed.tick()
        followed = [events(message)[-1][1] for message in await received(viewer)]
        assert followed[0] == {"key": key_text(KEY), "row": {"tokens": 3}, "curve": {}}
        assert followed[1] == followed[2]
        assert followed[1]["verdict"] == {
            name: row_of(KEY, outcome="ours", met=False)[name] for name in VERDICT_COLUMNS
        }
        assert made == ["another's", "ours"]

    asyncio.run(go())


def test_verdicts_are_searched_once_for_a_stream_that_has_none_yet() -> None:
    async def go() -> None:
        made: list[str] = []

        def row(key: StreamKey, name: str) -> dict[str, Any]:
            made.append(name)
            return row_of(key)

        old, new, ours = partial(row, OTHER, "old"), partial(row, OTHER, "new"), partial(row, KEY, "ours")
        fed = Fed()
        feed = fed.feed()
        viewer = feed.join(Selection(stream=KEY))
        for verdict in (old, new, ours):
            fed.recent += [verdict, *(partial(row_of, OTHER) for _ in range(12))]  # these 12 are shown
            feed.tick()
        assert made == ["old", "new", "ours"]
        assert dict(events((await received(viewer))[-1]))["stream"]["verdict"] is not None
        late = feed.join(Selection(stream=OTHER))
        feed.tick()
        assert made == ["old", "new", "ours"]
        assert dict(events((await received(late))[-1]))["stream"]["verdict"] is not None, "an old verdict is found"

    asyncio.run(go())


def test_hostile_text_stays_inside_its_event() -> None:
    async def go() -> None:
        fed = Fed(fleet={"models": [HOSTILE]}, page={"matching": 1, "streams": [{"model": HOSTILE}]})
        feed = fed.feed()
        viewer = feed.join(Selection())
        feed.tick()
        (message,) = await received(viewer)
        assert message.isascii()
        assert [name for name, _ in events(message)] == ["history", "fleet", "page"]
        assert dict(events(message))["page"]["streams"] == [{"model": HOSTILE}]

    asyncio.run(go())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_event_holds_what_json_has_not(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        event("page", {"x": value})


def test_no_viewers_no_thread() -> None:
    fed = Fed()
    feed = fed.feed(most_viewers=0, every_s=0.0)
    feed.start()
    feed.stop()
    assert fed.asked == []


def test_a_stop_closes_all_viewers_and_admits_none() -> None:
    async def go() -> None:
        feed = Fed().feed(every_s=0.001)
        viewer = feed.join(Selection())
        feed.start()
        assert await next_of(viewer)
        await asyncio.to_thread(feed.stop)
        async for _ in viewer.messages():
            pass
        with pytest.raises(UnavailableError, match="stopping"):
            feed.join(Selection())
        assert feed.viewers == 0

    asyncio.run(go())


def test_a_bug_of_ours_is_logged_once_and_the_feed_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        fed = Fed(problem=ZeroDivisionError())
        feed = fed.feed(every_s=0.001)
        viewer = feed.join(Selection())
        feed.start()
        while len(fed.asked) < 3:
            await asyncio.sleep(0.001)
        fed.problem = None
        assert await next_of(viewer)
        await asyncio.to_thread(feed.stop)

    asyncio.run(go())
    assert caplog.text.count("the live page could not be updated") == 1


def test_the_files_of_the_page_are_its_own_and_hold_no_inline_code() -> None:
    files = static_files()
    assert {"/", "/live/main.js", "/live/page.css", "/live/icon.svg"} <= files.keys()
    html = files["/"].content.decode()
    assert "<script>" not in html
    assert "style=" not in html
    assert re.search(r"<[^>]*\son\w+=", html) is None
    for path in ("src", "href"):
        for part in html.split(f'{path}="')[1:]:
            target = part.partition('"')[0]
            assert target in files or target == "/v1/streams", target
    code = b"".join(file.content for path, file in files.items() if path.endswith(".js")).decode()
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "http:",
        "https:",
    ):
        assert forbidden not in code.replace("http://www.w3.org/2000/svg", "")
    policy = FILE_HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
