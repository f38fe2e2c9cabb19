"""The live page in a real browser, under its policy: a stall drains a buffer, keys open a stream, names do not run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.audit.chromium import Page, browser
from support.commands import Collector, collector
from support.live_feed import HOSTILE
from support.live_load import NS, Load, Reader
from support.ports import free_ports
from support.requirements import require

pytestmark = pytest.mark.alone

TOKEN = "a-token-of-this-test"
STALLED, HEALTHY, OTHERS = 7, 8, 20
BUFFER = 25
"""Tokens that the page shows unread when their stream stalls: five seconds of reading, five of its updates."""
FIRST_ROW = "document.querySelector('#streams tbody tr')"


def readers() -> list[Reader]:
    """Return one that stalls for good once the page shows it, and others that get theirs in time."""
    fleet = [Reader(number, instance=f"vllm-{number % 3}", rate=10) for number in range(OTHERS, OTHERS + 20)]
    return [
        Reader(STALLED, model="stalls", rate=15),
        Reader(HEALTHY, model=HOSTILE, slo_class="code", rate=40),
        Reader(9, model="ends", rate=10, end_s=2.5),
        *fleet,
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("chromium")
    folder = tmp_path_factory.mktemp("live")
    (folder / "tokens").write_text(f"{TOKEN}\n")
    (folder / "tokens").chmod(0o600)
    (folder / "config.yaml").write_text("version: 1\nauth: {tokens_file: tokens}\n")
    return folder


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Collector]:
    web = f"127.0.0.1:{free_ports(1)[0]}"  # it starts again there, and the page asks for it meanwhile
    with collector(folder, "--config", folder / "config.yaml", "--web", web) as one:
        yield one


@pytest.fixture(scope="module")
def page(running: Collector) -> Iterator[Page]:
    with browser(1400, 900) as one:
        one.call("Page.navigate", url=f"{running.web}/")
        yield one


def key(page: Page, name: str) -> None:
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=CODES[name])


CODES = {"ArrowDown": 40, "ArrowUp": 38, "Enter": 13, "Escape": 27, "End": 35, "Home": 36}


def text(page: Page, selector: str) -> str:
    return str(page.evaluate(f"document.querySelector({selector!r})?.textContent ?? ''"))


def row(page: Page, number: int) -> dict[str, Any]:
    """Return what the row of a stream says, {} if it has none."""
    trace = number.to_bytes(16, "big").hex()
    cells = page.evaluate(
        f"[...(document.querySelector('tr[data-key^=\"{trace}\"]')?.cells ?? [])].map((cell) => cell.textContent)"
    )
    names = ("runway", "delivered", "read", "left", "idle", "age", "slo_class", "model", "instance", "state", "trace")
    return dict(zip(names, cells, strict=True)) if cells else {}


def test_the_page_from_the_token_to_the_dark(page: Page, running: Collector, folder: Path) -> None:
    """One story, since each step needs the state of the one before."""
    asks_for_the_token(page)
    # Streams begin once the page is live: a browser may take longer to start than a buffer to drain.
    with Load(running.http, readers(), TOKEN) as load:
        sees_a_stall_drain_a_buffer(page, load)
        opens_a_stream_by_keys(page)
        shows_hostile_text_as_text(page)
        shows_the_end_of_an_open_stream(page, load)
        filters_on_the_service(page)
        keeps_the_names_of_rules_whole(page)
        names_a_cell_by_its_own_text(page)
        is_legible_in_light_and_dark(page)
        survives_a_restart_of_the_service(page, running, folder)


def asks_for_the_token(page: Page) -> None:
    page.wait(lambda: page.evaluate("document.activeElement?.id") == "token-text")
    assert "needed" in text(page, "#status")
    page.call("Input.insertText", text=f"{TOKEN}x")
    key_enter_submits(page)
    page.wait(lambda: "not known" in text(page, "#status"))
    page.evaluate("document.getElementById('token-text').focus()")
    # As a table of tokens may shorten it: no header can hold it.
    page.call("Input.insertText", text=f"{TOKEN[:9]}\u2026")
    key_enter_submits(page)
    assert "not known" in text(page, "#status")
    assert not page.evaluate("document.getElementById('token').hidden")
    page.evaluate("document.getElementById('token-text').select()")
    page.call("Input.insertText", text=TOKEN)
    key_enter_submits(page)
    page.wait(lambda: text(page, "#status") == "live")
    assert page.evaluate("document.getElementById('token').hidden")
    assert not any(TOKEN in url for url in page.requests())
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 1, ""]
    # The two refusals are answers that the browser reports by itself.
    assert [one["params"]["entry"]["source"] for one in page.complaints()] == ["network"] * 2
    page.events.clear()


def key_enter_submits(page: Page) -> None:
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    page.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter", windowsVirtualKeyCode=13)


def sees_a_stall_drain_a_buffer(page: Page, load: Load) -> None:
    page.wait(lambda: int(row(page, STALLED).get("left", "0").replace(",", "")) >= BUFFER)
    (stalled,) = (one for one in load.readers if one.number == STALLED)
    stalled.stall = ((time.time_ns() - stalled.begun_ns) / NS, 1e9)
    seen: list[tuple[int, int, int]] = []

    def waits() -> bool:
        found = row(page, STALLED)
        if found:
            now = tuple(int(found[name].replace(",", "")) for name in ("delivered", "read", "left"))
            assert now[0] == now[1] + now[2]
            assert found["left"].isdecimal(), "no -0"
            if not seen or seen[-1] != now:
                seen.append(now)  # type: ignore[arg-type]
        return bool(found) and found["runway"].startswith("waiting")

    page.wait(waits)
    last = seen[-1][0]
    drained = [left for delivered, _, left in seen if delivered == last]
    assert drained == sorted(drained, reverse=True)
    assert len(drained) >= 3
    assert drained[-1] == 0
    page.wait(lambda: first_is_stalled(page))
    assert page.evaluate(f"{FIRST_ROW}.classList.contains('dry')")
    assert int(text(page, "#in-flight")) == len(readers()) - 1
    assert text(page, "#waiting") == "1"
    page.wait(lambda: "ends" in text(page, "#verdicts tbody"))
    assert "met" in text(page, "#verdicts tbody")
    rows = "[...document.querySelectorAll('#classes tbody tr')]"
    assert {"chat", "code"} <= set(page.evaluate(f"{rows}.map((one) => one.cells[0].textContent)"))
    chat = f"{rows}.find((one) => one.cells[0].textContent === 'chat')"
    drawn = page.evaluate(f"[...{chat}.querySelectorAll('path')].map((one) => one.getAttribute('d'))")
    assert len(drawn) == 5
    assert all(drawn), "idle, the objective, attainment, all tokens, smooth goodput"
    page.wait(lambda: "1 stream" in text(page, "#firing ul"))


def first_is_stalled(page: Page) -> bool:
    return str(page.evaluate(f"{FIRST_ROW}.dataset.key")).startswith(STALLED.to_bytes(16, "big").hex())


def opens_a_stream_by_keys(page: Page) -> None:
    page.evaluate("document.getElementById('instance').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    page.call("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert page.evaluate("document.activeElement?.id") == "streams"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    chosen = "document.querySelector('#streams [aria-selected=true]')"
    assert page.evaluate(f"{chosen} === {FIRST_ROW}")
    key(page, "End")
    assert page.evaluate(f"{chosen} === document.querySelector('#streams tbody').lastElementChild")
    for begin, step in (("End", "ArrowUp"), ("Home", "ArrowDown")):
        key(page, begin)
        before = page.evaluate(f"{chosen}.id")
        key(page, step)
        assert page.evaluate(f"{chosen}.id") != before
    active = "document.activeElement.getAttribute('aria-activedescendant')"
    assert page.evaluate(f"{chosen}.id === {active}")
    key(page, "Home")
    assert page.evaluate("document.getElementById('detail').hidden")
    key(page, "Enter")
    assert not page.evaluate("document.getElementById('detail').hidden")
    page.wait(lambda: "reader waits" in text(page, "#detail-state"))
    assert "stalls" in text(page, "#detail-title")
    shapes = "['delivered', 'read', 'buffer', 'idle', 'line']"
    drawn = f"{shapes}.map((one) => document.querySelector(`#chart .${{one}}`).getAttribute('d'))"
    page.wait(lambda: all(page.evaluate(drawn)))
    box = f"{FIRST_ROW}.cells[0]"
    assert page.evaluate(f"{box}.scrollWidth <= {box}.clientWidth"), "the words beside the bar are whole"
    before = page.evaluate(drawn)[3]
    page.wait(lambda: page.evaluate(drawn)[3] != before)  # the wait grows on the picture
    for button in (False, True):
        if button:
            page.evaluate("document.getElementById('close').focus()")
            key_enter_submits(page)
        else:
            key(page, "Escape")
        assert page.evaluate("document.getElementById('detail').hidden")
        assert page.evaluate("document.activeElement?.id") == "streams"
        key(page, "Enter")
    key(page, "Escape")


def shows_hostile_text_as_text(page: Page) -> None:
    assert row(page, HEALTHY)["model"] == HOSTILE.replace("\n", "\\u{a}").replace("\u202e", "\\u{202e}")
    key_of = f"document.querySelector('tr[data-key^=\"{HEALTHY.to_bytes(16, 'big').hex()}\"]')"
    page.evaluate(f"{key_of}.cells[0].click()")
    page.wait(lambda: "<img" in text(page, "#detail-title"))
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.querySelectorAll('[onerror]').length") == 0
    blocked = "try { document.body.innerHTML = '<b>'; 'ran' } catch (error) { error.name }"
    assert page.evaluate(blocked) == "TypeError", "trusted types forbid markup, whatever a later change does"
    page.events[:] = [one for one in page.events if "innerHTML" not in str(one) and "TrustedHTML" not in str(one)]


def shows_the_end_of_an_open_stream(page: Page, load: Load) -> None:
    page.wait(lambda: "left to read" in text(page, "#detail-state"))
    (healthy,) = (one for one in load.readers if one.number == HEALTHY)
    healthy.end_s = 0.0
    page.wait(lambda: text(page, "#detail-state").startswith("ended: completed, met"))
    assert page.evaluate("document.querySelector('#chart .delivered').getAttribute('d')"), "the curve stays"
    key(page, "Escape")


def filters_on_the_service(page: Page) -> None:
    choose(page, "vllm-1")
    page.wait(lambda: text(page, "#matching") == "6 shown")
    names = "[...new Set([...document.querySelectorAll('#streams tbody tr')].map((one) => one.cells[8].textContent))]"
    page.wait(lambda: page.evaluate(names) == ["vllm-1"])
    assert page.evaluate("document.getElementById('empty').hidden")
    choose(page, "stalls", "model")
    page.wait(lambda: text(page, "#matching") == "0 shown")
    assert text(page, "#empty") == "No stream with these names is in flight."
    choose(page, "", "model")
    choose(page, "")
    page.wait(lambda: text(page, "#matching") == f"{len(readers()) - 2} shown")
    held = "{runway_s: -1, paused: true, queued: false, rules: ['R']}"
    words = f"import('/live/streams.js').then((one) => one.stateOf({held}))"
    assert page.evaluate(words) == "waiting, paused, R"


def choose(page: Page, value: str, name: str = "instance") -> None:
    page.evaluate(
        "((one, value) => { one.value = value; one.dispatchEvent(new Event('change')); })"
        f"(document.getElementById({name!r}), {value!r})"
    )


def keeps_the_names_of_rules_whole(page: Page) -> None:
    """A rule that fires on many instances has a long list of them beside its name."""
    lines = (
        "((item) => { item.lastChild.textContent = 'vllm-0 chat, '.repeat(30);"
        " return item.firstChild.offsetHeight / parseFloat(getComputedStyle(item).lineHeight); })"
    )
    assert page.evaluate(f"{lines}(document.querySelector('#firing li'))") < 1.5


def names_a_cell_by_its_own_text(page: Page) -> None:
    """Rows are reused: the title of a long text does not stay on a short one."""
    titles = (
        "import('/live/format.js').then(({ fill, make }) => { const body = make('table').createTBody();"
        " return ['a'.repeat(20), 'short'].map((one) => {"
        " fill(body, [one], (text) => [[text, '']]); return body.rows[0].cells[0].title; }); })"
    )
    assert page.evaluate(titles) == ["a" * 20, ""]


def is_legible_in_light_and_dark(page: Page) -> None:
    """The contrast of text on its card is at least 4.5 (WCAG 2.2, success criterion 1.4.3)."""
    for scheme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for selector in ("#streams td:nth-child(2)", "#streams th", "tr.dry .runway span", "#matching", "#waiting.bad"):
            colours = page.evaluate(
                f"[getComputedStyle(document.querySelector({selector!r})).color,"
                " ...['flight', 'streams'].map((id) => getComputedStyle(document.getElementById(id)).backgroundColor)]"
            )
            assert contrast(colours[0], colours[1]) >= 4.5, (scheme, selector, colours)
        words, grounds = (colours_of(page, names) for names in (["text", "muted", "low", "bad", "good"], GROUNDS))
        low = [(scheme, word, ground) for word in words for ground in grounds if contrast(word, ground) < 4.5]
        assert low == [], "also on the chosen row"
    page.call("Emulation.setEmulatedMedia", features=[])
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


GROUNDS = ["back", "card", "chosen"]


def colours_of(page: Page, names: list[str]) -> list[str]:
    """Return the colours of variables of the page's style, rgb(r, g, b)."""
    shown = "((place) => {names}.map((name) => { place.style.color = `var(--${name})`; return colour(place); }))"
    expression = shown.replace("{names}", str(names)).replace("colour(place)", "getComputedStyle(place).color")
    found = page.evaluate(f"{expression}(document.body.appendChild(document.createElement('i')))")
    assert len(set(found)) == len(names)
    return [str(one) for one in found]


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two CSS colours, rgb(r, g, b)."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def survives_a_restart_of_the_service(page: Page, running: Collector, folder: Path) -> None:
    assert page.complaints() == []
    assert running.stop()[0] == 0
    page.wait(lambda: "again in" in text(page, "#status"))
    assert page.evaluate("document.getElementById('status').dataset.state") == "lost"
    assert "stalls" in text(page, "#streams"), "the last state stays"
    with collector(folder, "--config", folder / "config.yaml", "--web", running.web.removeprefix("http://")):
        page.wait(lambda: text(page, "#status") == "live")
        page.wait(lambda: first_is_stalled(page))  # from the journal: its sender is still silent
