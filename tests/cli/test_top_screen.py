"""The terminal program: its keys, its filters at the service, its details; and a collector that restarts under it."""

from __future__ import annotations

import fcntl
import os
import termios
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cli.top_terminal import top_of
from rich.console import Console
from support.commands import collector, wait_until
from support.live_load import Load, Reader
from support.patience import WAIT_S
from support.ports import free_ports

from otel_llm.cli.commands.top_command import Screen, buffer_line
from otel_llm.cli.output.keys import names_of_keys, read_keys

CURVE = {"n": [1, 2, 3], "delivered_s": [0.0, 0.0, 2.0], "read_s": [0.5, 1.0, 2.5]}


def stream(number: int, **more: Any) -> dict[str, Any]:
    known = {
        "trace_id": f"{number:032x}",
        "span_id": f"{number:016x}",
        "tenant": "default",
        "choice": 0,
        "slo_class": "chat",
        "model": "m",
    }
    facts = {"tokens": 3, "tokens_read": 3, "age_s": 2.0, "idle_s": 0.0, "runway_s": 1.0, "ttft_s": 0.1, "gap_s": 0.2}
    facts["ttfo_s"] = 0.3
    rest = {"instance": "a", "measured_at": "client", "fluidity_index": None, "rules": ["Starving"]}
    return {**known, **facts, **rest, **more}


def snapshot(*numbers: int, **more: Any) -> dict[str, Any]:
    names = {"slo_classes": ["chat", "code"], "models": ["m"], "instances": []}
    counts = {"in_flight": 9, "starving": 1, "judged": 0, "matching": len(numbers), "recent": [], "decisions": []}
    return {**counts, **names, "streams": [stream(number) for number in numbers], **more}


def drawn(screen: Screen, height: int = 30, width: int = 150) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(screen.draw(height, width))
    return captured.get()


def key(number: int) -> str:
    return f"{number:032x}-{number:016x}-0"


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1b", ["escape"]),
        ("sq", ["s", "q"]),
        ("\r", ["enter"]),
        ("j\x1b[F\x1b[H", ["down", "end", "home"]),
        ("\x1bOA\x1b[5~\x1b[6~", ["up", "page up", "page down"]),
        ("\x1b[9~\x1b[1;5As", ["s"]),
        ("", []),
    ],
)
def test_the_keys_in_what_a_terminal_sends(typed: str, names: list[str]) -> None:
    assert names_of_keys(typed) == names


def test_a_sequence_that_arrives_in_pieces_is_one_key() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"\x1b")

    def write_rest() -> None:
        wait_until("the first piece is read", lambda: fcntl.ioctl(ours, termios.FIONREAD, bytes(4)) == bytes(4), 0.001)
        os.write(theirs, b"[A")

    later = Thread(target=write_rest)
    later.start()
    try:
        assert read_keys(ours, WAIT_S, rest_s=WAIT_S) == ["up"]
        os.write(theirs, b"\x1b")
        assert read_keys(ours, WAIT_S) == ["escape"]
        assert read_keys(ours, 0) == []
        os.close(theirs)
        assert read_keys(ours, WAIT_S) == ["q"], "the terminal is gone"
    finally:
        later.join()
        os.close(ours)


def test_the_selection_follows_its_stream_and_stays_in_its_place_when_that_ends() -> None:
    screen = Screen()
    screen.show(snapshot(1, 2, 3))
    assert screen.selected == key(1)
    for name, number in (("down", 2), ("down", 3), ("down", 3), ("up", 2), ("home", 1), ("end", 3)):
        assert screen.press(name)
        assert screen.selected == key(number)
    screen.press("up")
    screen.show(snapshot(4, 3, 2))
    assert screen.selected == key(2)
    screen.show(snapshot(5, 6))
    assert screen.selected == key(6)
    screen.show(snapshot())
    assert screen.selected is None
    assert screen.press("down")
    assert not screen.press("q")


def test_keys_sort_and_filter_at_the_service() -> None:
    screen = Screen()
    screen.show(snapshot(1))
    assert screen.query() == {"sort": "runway"}
    queries = []
    for name in "scccmis":
        screen.press(name)
        queries.append(screen.query())
    assert [one["sort"] for one in queries] == ["idle"] * 6 + ["age"]
    assert [one.get("slo_class") for one in queries] == [None, "chat", "code", None, None, None, None]
    assert queries[-1] == {"sort": "age", "model": "m"}, "there is no instance to filter by"
    assert "model m" in drawn(screen)
    screen.press("x")
    assert screen.query() == {"sort": "age"}


@pytest.mark.parametrize("width", [80, 100, 150])
def test_a_usual_terminal_shows_every_number_and_shortens_names(width: int) -> None:
    screen = Screen()
    name = "meta-llama/Llama-3.1-8B"
    facts = {"tokens": 12345, "age_s": 1234.5, "idle_s": 12.34, "model": name, "instance": f"{name}-0"}
    screen.show(snapshot(0x123456 << 104, streams=[stream(0x123456 << 104, **facts), stream(2, runway_s=-1.25)]))
    head, first, second = drawn(screen, width=width).splitlines()[1:4]
    for word in ("class", "model", "insta", "trace", "tokens", "age", "idle", "runway"):
        assert word in head
    for word in ("chat", "123456", "12345", "1234.5", "12.34", "1.0"):
        assert f" {word} " in f"{first} ", (word, first)
    assert "waiting for 1.2 s" in second
    assert (name in first) == (width == 150), "names give way"


def test_an_open_stream_shows_its_facts_and_its_buffer() -> None:
    screen = Screen()
    screen.show(snapshot(1, 2))
    screen.press("down")
    screen.press("enter")
    assert screen.query()["stream"] == key(2)
    screen.show(snapshot(1, 2, followed={"row": stream(2, model="\x1b[2Jm"), "curve": CURVE}))
    text = drawn(screen)
    assert "Starving" in text
    assert "\\u{1b}[2Jm" in text
    screen.show(snapshot(1, followed=None))
    assert "no longer in flight" in drawn(screen)
    assert "MISSED" not in drawn(screen)
    screen.show(
        snapshot(
            1, followed=None, recent=[stream(3, met=True, outcome="completed"), stream(2, met=False, outcome="error")]
        )
    )
    assert "MISSED" in drawn(screen)
    assert "completed" not in drawn(screen)
    screen.press("escape")
    assert "stream" not in screen.query()


def test_a_buffer_is_what_is_delivered_and_not_read() -> None:
    """Two tokens at once, read by 0.5 s and 1 s; nothing until 2 s, then one that is read by 2.5 s."""
    assert buffer_line(CURVE, 2.5, 5) == "█··█· 1 at most"
    assert buffer_line(CURVE, 2.5, 10) == "█▄▄····▄▄· 2 at most"


def test_a_service_that_is_gone_is_reported_over_the_last_snapshot() -> None:
    screen = Screen()
    screen.show(snapshot(1))
    screen.lost("no collector answers; asking again")
    assert "no collector answers" in drawn(screen)
    assert "9 in flight" in drawn(screen)
    screen.show(snapshot(1))
    assert "no collector answers" not in drawn(screen)


def test_a_restart_of_the_collector_is_survived(tmp_path: Path) -> None:
    web = ("--web", f"127.0.0.1:{free_ports(1)[0]}")
    with collector(tmp_path, *web) as first, top_of(first.web) as terminal:
        with Load(first.http, [Reader(1, model="first", rate=9), Reader(2, model="second", rate=9)]):
            terminal.wait_for("2 in flight")
            terminal.press(b"m")
            terminal.wait_for("model first")
            terminal.press(b"\r")
            terminal.wait_for("fluidity")
        assert first.stop()[0] == 0
        terminal.wait_for("asking again")
        again = [Reader(3, model="first")]
        with collector(tmp_path, *web) as second, Load(second.http, again):
            terminal.wait_for("2 by runway, model first")  # one of them from the journal
            terminal.press(b"q")
            assert terminal.program.wait(WAIT_S) == 0
