"""The report of a hundred thousand requests in a real browser: it opens, it is small, and keys and paper do."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.audit.chromium import Page, browser
from support.audit.figures import check
from support.audit.report_tables import fleet
from support.requirements import require
from support.vectors import FOLDER

from otel_llm.audit import load
from otel_llm.audit.report.html_page import plotly_script
from otel_llm.audit.report.report import build
from otel_llm.audit.report.report_model import ReportModel
from otel_llm.rules.files.slo_file import load_slo

FIXTURES = Path(__file__).parents[2] / "formats" / "recordings" / "bench" / "fixtures"
COUNT = 100_000
MOST_BYTES = 1_000_000
"""What a report may be larger than the script that draws it."""


@pytest.fixture(scope="module")
def markup() -> str:
    requests, windows = fleet(COUNT)
    summary = {"requests": COUNT, "tokens": int(requests["tokens"].sum()), "span_s": 3600.0, "classes": {}}
    none = dict[str, int]()
    model = ReportModel(
        requests,
        windows,
        summary,
        load_slo(None),
        10**10,
        ("generated",),
        none,
        none,
        lambda _: None,
        "No token times.",
    )
    return build(model)


@pytest.fixture(scope="module")
def page(markup: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    require("chromium")
    path = tmp_path_factory.mktemp("large") / "report.html"
    path.write_text(markup, encoding="utf-8")
    with browser() as one:
        one.open(path)
        one.wait(lambda: one.evaluate("document.documentElement.dataset.drawn") == "13")
        yield one


def key(page: Page, name: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)


def hover(page: Page) -> str:
    words = "[...document.activeElement.querySelectorAll('.hoverlayer')].map((one) => one.textContent).join()"
    return str(page.evaluate(words))


def test_a_hundred_thousand_requests_are_a_small_page(markup: str) -> None:
    assert len(markup.encode()) - len(plotly_script()) < MOST_BYTES


@pytest.mark.essential
def test_it_draws_everything_without_a_word_on_the_console_or_the_network(page: Page) -> None:
    assert page.complaints() == []
    assert page.requests() == []
    assert page.evaluate("[...document.querySelectorAll('.plot')].every((one) => one.querySelector('.main-svg'))")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_first_tab_skips_to_the_figures_and_every_picture_can_be_reached(page: Page) -> None:
    page.evaluate("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
    key(page, "Tab", 9)
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    seen: list[str] = []
    for _ in range(95):
        key(page, "Tab", 9)
        seen.append(str(page.evaluate("document.activeElement.id || document.activeElement.tagName")))
    pictures = page.evaluate("[...document.querySelectorAll('.plot')].map((one) => one.id)")
    assert [one for one in seen if one in pictures] == pictures
    assert seen.count("SUMMARY") >= len(pictures) - 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("windows-0", "tokens/s"),
        ("cdf-ttft_s", "have at most"),
        ("load-0", "in flight"),
        ("starving-0", "vllm-00"),
    ],
)
def test_arrow_keys_show_the_values_of_a_picture(page: Page, name: str, words: str) -> None:
    page.evaluate(f"document.getElementById('{name}').focus()")
    outline = page.evaluate(f"getComputedStyle(document.getElementById('{name}')).outlineStyle")
    key(page, "ArrowRight", 39)
    page.wait(lambda: words in hover(page))
    first = hover(page)
    key(page, "ArrowRight", 39)
    page.wait(lambda: hover(page) != first)
    key(page, "Escape", 27)
    page.wait(lambda: words not in hover(page))

    assert outline == "solid"
    assert page.evaluate("document.activeElement.id") == name


def test_the_distributions_show_the_class_of_a_curve(page: Page) -> None:
    page.evaluate("document.getElementById('cdf-idle_s').focus()")
    for name, code in (("ArrowRight", 39), ("ArrowDown", 40)):
        key(page, name, code)
    page.wait(lambda: "voice, client" in hover(page))


def test_paper_gets_the_light_palette_and_no_picture_is_cut(page: Page) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.evaluate(
        "window.paper = null; addEventListener('beforeprint', () => { window.paper = "
        "[...document.querySelectorAll('.plot')].map((one) => [one.id, one.querySelector('.main-svg').clientWidth,"
        "getComputedStyle(one.querySelector('.xtick text, .ytick text')).fill]); })"
    )
    pdf = base64.b64decode(page.call("Page.printToPDF", printBackground=True)["data"])
    reported: list[list[Any]] = page.evaluate("window.paper")
    wide = "document.querySelector('#windows-0 .main-svg').clientWidth"
    page.wait(lambda: bool(page.evaluate(wide) > 900))
    page.call("Emulation.setEmulatedMedia", features=[])

    assert len(reported) == 13
    assert {fill for _, _, fill in reported} == {"rgb(91, 102, 114)"}
    # A4 at 96 dpi without its margins is 718 wide; the pictures in pairs share it.
    assert all(width <= (330 if name.startswith("cdf") else 680) for name, width, _ in reported)
    assert 4 <= len(re.findall(rb"/Type /Page\b", pdf)) <= 20


def test_the_figures_are_valid(markup: str) -> None:
    import json

    data = re.search(r"<script type='application/json' id='figures'>(.*?)</script>", markup, re.DOTALL)
    assert data
    for figure in json.loads(data.group(1)).values():
        check(figure)


CUT = """[...document.querySelectorAll('.plot .main-svg')].flatMap((svg) => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter((text) => {
    const { left, right, top, bottom, width } = text.getBoundingClientRect();
    return width && (left < box.left - 1 || right > box.right + 1 || top < box.top - 1 || bottom > box.bottom + 1);
  }).map((text) => svg.closest('.plot').id + ': ' + text.textContent);
})"""
"""The words of pictures that reach beyond their picture."""
OVERLAPPING = """[...document.querySelectorAll('.plot')].flatMap((plot) => {
  const words = [...plot.querySelectorAll('.main-svg text')].filter((one) => one.textContent.trim());
  const boxes = words.map((one) => one.getBoundingClientRect());
  return boxes.flatMap((a, at) => boxes.slice(at + 1).map((b, more) => [a, b, at, at + 1 + more])).filter(
    ([a, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3
  ).map(([, , one, other]) => plot.id + ': ' + words[one].textContent + ' | ' + words[other].textContent);
})"""
"""The words of pictures that stand on each other."""


@pytest.mark.parametrize("unanchored", [False, True])
def test_a_phone_shows_all_words_of_the_pictures_and_scrolls_down_only(tmp_path: Path, unanchored: bool) -> None:
    require("chromium")
    recording = FIXTURES / "vllm_chat.json" if unanchored else FOLDER / "rows.jsonl"
    load(recording).write_html(tmp_path / "report.html")
    with browser() as phone:
        phone.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        phone.open(tmp_path / "report.html")
        count = phone.evaluate("document.querySelectorAll('.plot').length")
        phone.wait(lambda: phone.evaluate("document.documentElement.dataset.drawn") == str(count))

        assert phone.evaluate("document.documentElement.scrollWidth") == 390
        assert phone.evaluate(CUT) == []
        assert phone.evaluate(OVERLAPPING) == []
        tall = "document.getElementById('windows-0').clientHeight"
        height = phone.evaluate(tall)
        phone.call("Emulation.setDeviceMetricsOverride", width=1280, height=844, deviceScaleFactor=1, mobile=False)
        phone.wait(lambda: bool(phone.evaluate(tall) < height))  # the legend is in a row again
        phone.wait(lambda: phone.evaluate(OVERLAPPING) == [])
