"""The report: complete, deterministic, honest about what it rests on, and deaf to what telemetry would make it do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.audit.chromium import Page, browser
from support.audit.figures import check
from support.otlp import T0_NS, Value, export, segment_span, stream_spans
from support.recordings import vector_classes, vector_messages, write_format
from support.requirements import require
from support.vectors import FOLDER

import otel_llm.audit
from otel_llm import semconv
from otel_llm.audit import Audit
from otel_llm.audit.report.delivery_sections import Chosen
from otel_llm.audit.report.report import render, render_deliveries

HOSTILE = (
    "</script><script>document.documentElement.dataset.owned=1;alert(1)</script>",
    '<img src=x onerror="document.documentElement.dataset.owned=1">',
    "\"><svg/onload=alert(1)>' onmouseover='alert(1)",
    "<a href='javascript:alert(1)'>x</a><b>",
    "$delivered",
    "&lt;b&gt; 模型 \u202eevil\u0000\u001b[31m\u2028",
    "<!--<script>",
    "{{constructor.constructor('alert(1)')()}}",
)


class Seen(HTMLParser):
    """Elements with their attributes, all text but the scripts', and the figures."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.figures: dict[str, Any] = {}
        self._inside: dict[str, str | None] | None = None
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = dict(attrs) if tag in {"script", "style"} else None

    def handle_endtag(self, tag: str) -> None:
        if tag in {"script", "style"}:
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            self.words += data
        elif self._inside.get("id") == "figures":
            self.figures = json.loads(data)


@pytest.fixture(scope="module")
def vectors_audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    path = write_format(tmp_path_factory.mktemp("report"), "journal.otlp", vector_messages())
    return otel_llm.audit.load(path, slo=vector_classes(), window="1s")


@pytest.fixture(scope="module")
def rows_page() -> Seen:
    return Seen(render(otel_llm.audit.load(FOLDER / "rows.jsonl")))


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of telemetry in which every name attacks, in a folder with a name of that kind."""
    folder = tmp_path_factory.mktemp("hostile <img src=x onerror=alert(1)>")
    path = folder / "journal.otlp"
    messages = []
    for number, name in enumerate(HOSTILE, start=1):
        identity: dict[str, Value] = {
            semconv.GEN_AI_OPERATION_NAME: "chat",
            semconv.GEN_AI_REQUEST_MODEL: name,
            semconv.INSTANCE: name,
            semconv.SLO_CLASS: name,
        }
        tokens = [T0_NS + (3 + index) * 10**9 for index in range(number)]
        messages.append(export(*stream_spans(tokens, request=number, end_ns=tokens[-1], identity=identity)))
    messages.append(export(segment_span(1, 0, request=99, attributes={"<b>": "x"})))
    write_format(folder, "journal.otlp", messages)
    page = folder / "report.html"
    otel_llm.audit.load(path).write_html(page)
    return page


def test_the_report_has_its_parts(rows_page: Seen) -> None:
    for words in (
        "18 requests with 69 tokens",
        "14 of 18 requests could be judged; 4 lack tokens or their start and are counted as incomplete",
        "smooth goodput, tokens/s",
        "What was counted as a token",
        "exact: each recorded token is one",
        "The height of a curve is the share of the requests",
        "how many requests were in flight in it on average",
        "The seconds that readers had nothing to read",
        "TBT p99 raises",
        "Wang et al., eq. 11",
        "What the classes promise",
        "segments received more than once",
        "The worst deliveries",
        "lowest fluidity_index below 1",
        "What the figures can hide",
        "Hold tokens back",
        "Nearest rank",
        "Judged by their first deadline alone",
    ):
        assert words in rows_page.words, words


def test_the_worst_requests_are_drawn_with_their_reader_and_stalls(rows_page: Seen) -> None:
    deliveries = {name: figure for name, figure in rows_page.figures.items() if name.startswith("delivery")}

    assert len(deliveries) == 6
    first = deliveries["delivery-0"]
    assert [trace["name"] for trace in first["data"]][:2] == ["reader without waits", "tangent, 2.8 s later"]
    assert first["layout"]["shapes"][0]["x1"] == 3.0
    assert "windows-0" in rows_page.figures
    for figure in rows_page.figures.values():
        check(figure)


def test_every_figure_has_a_place_words_for_who_cannot_see_it_and_its_numbers_in_a_table(rows_page: Seen) -> None:
    places = {given["id"]: given for name, given in rows_page.elements if given.get("role") == "img"}

    assert set(places) == set(rows_page.figures)
    assert all(len(given["aria-label"] or "") > 60 for given in places.values())
    assert {given["tabindex"] for given in places.values()} == {"0"}
    assert sum(name == "details" for name, _ in rows_page.elements) == len(rows_page.figures)
    assert all(given.get("scope") for name, given in rows_page.elements if name == "th")


def test_the_same_input_gives_the_same_bytes(vectors_audit: Audit, tmp_path: Path) -> None:
    path = tmp_path / "journal.otlp"
    first = render(otel_llm.audit.load(FOLDER / "rows.jsonl"))
    assert render(otel_llm.audit.load(FOLDER / "rows.jsonl")) == first
    assert not path.exists()
    assert render(vectors_audit) == render(vectors_audit)


def test_every_vector_that_can_be_judged_can_be_drawn(vectors_audit: Audit) -> None:
    chosen = [Chosen(position, f"v {position}") for position in range(len(vectors_audit.rows))]
    figures = Seen(render_deliveries(vectors_audit, chosen, title="all")).figures

    assert len(figures) == len(chosen)
    for figure in figures.values():
        check(figure)


def test_an_incomplete_request_is_not_drawn() -> None:
    audit = otel_llm.audit.load(FOLDER / "rows.jsonl")
    hole = next(i for i, row in enumerate(audit.rows) if row["coverage"] == pytest.approx(1 / 3))
    with pytest.raises(ValueError, match="incomplete"):
        render_deliveries(audit, [Chosen(hole, "x")], title="x")


def test_the_methods_say_where_the_shipped_classes_judged(rows_page: Seen, vectors_audit: Audit) -> None:
    says = "Judged by the shipped SLO classes; --slo FILE for your own."
    assert says in rows_page.words
    assert says in Seen(render(otel_llm.audit.load(FOLDER / "rows.jsonl", class_name="code"))).words
    assert says not in Seen(render(vectors_audit)).words


def test_telemetry_without_a_stream_gives_a_page_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "other.pb"
    span = segment_span(0, 0)
    span.name = "GET /"
    path.write_bytes(export(span).SerializeToString())
    seen = Seen(render(otel_llm.audit.load(path)))

    assert "No request was found." in seen.words
    assert "None is shown: no request could be judged." in seen.words
    assert seen.figures == {}


def test_nothing_in_telemetry_becomes_markup(hostile_page: Path) -> None:
    seen = Seen(hostile_page.read_text("utf-8"))

    assert [given for name, given in seen.elements if name in {"img", "svg", "b", "iframe", "object", "link"}] == []
    assert not {key for _, given in seen.elements for key in given if key.startswith("on") or key == "src"}
    assert all((given["href"] or "").startswith("#") for _, given in seen.elements if "href" in given)
    assert sum(name == "script" for name, _ in seen.elements) == 3
    assert "<img src=x onerror=" in seen.words
    assert not {"\u202e", "\u0000", "\u001b", "\u2028"} & set(seen.words)
    labels = [name for figure in seen.figures.values() for name in strings(figure)]
    assert {tag for one in labels for tag in re.findall("<[^>]*>", one)} <= {
        "<b>",
        "</b>",
        "<br>",
        "<extra>",
        "</extra>",
    }
    assert not {"\u202e", "\u0000", "\u001b", "\u2028"} & set("".join(labels))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Page]:
    require("chromium")
    with browser() as page:
        yield page


def drawn(chrome: Page) -> int:
    """Wait until every picture is drawn, and return how many there are."""
    count = "Object.keys(JSON.parse(document.getElementById('figures').textContent)).length"
    pictures = int(chrome.evaluate(count))
    chrome.wait(lambda: chrome.evaluate("document.documentElement.dataset.drawn") == str(pictures))
    return pictures


def test_a_browser_runs_nothing_of_it_and_asks_for_nothing(chrome: Page, hostile_page: Path) -> None:
    chrome.open(hostile_page)
    drawn(chrome)

    assert chrome.evaluate("document.documentElement.dataset.owned || null") is None
    assert chrome.complaints() == []
    assert chrome.requests() == []
    assert chrome.evaluate("document.querySelectorAll('.plot svg.main-svg').length > 0")
    rows = chrome.evaluate(
        "[...document.querySelectorAll('#starving-0 .yaxislayer-above text')].map(t => t.textContent)"
    )
    assert len(rows) == len(HOSTILE) + 1
    assert "$delivered" in rows
    assert any(row.startswith("<img src") and "…" in row for row in rows)
    assert (
        chrome.evaluate("document.querySelectorAll('.plot a:not(.modebar-btn), .plot img, .plot tspan a').length") == 0
    )


def test_the_page_cannot_reach_the_network_nor_run_another_script(chrome: Page, hostile_page: Path) -> None:
    chrome.open(hostile_page)
    chrome.evaluate(
        "(() => { const s = document.createElement('script'); s.textContent = 'document.title = \"owned\"';"
        "document.body.append(s); const i = new Image(); i.src = 'http://127.0.0.1:9/x.png';"
        "document.body.append(i); })()"
    )
    blocked = [one for one in chrome.complaints() if "Content Security Policy" in json.dumps(one)]

    assert len(blocked) >= 2
    assert chrome.evaluate("document.title") == "What the readers felt"
    chrome.events.clear()


def test_pictures_show_values_on_hover_and_follow_the_colour_scheme(chrome: Page, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    otel_llm.audit.load(FOLDER / "rows.jsonl").write_html(page)
    chrome.open(page)
    assert drawn(chrome) == 18

    spot = chrome.evaluate(
        "(() => { const p = document.getElementById('delivery-1'); p.scrollIntoView({block: 'center'});"
        "const r = p.querySelector('.scatterlayer .points path:nth-child(3)').getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    for x in (spot[0] - 30, spot[0]):
        chrome.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=spot[1])
    shown = "[...document.querySelectorAll('.hoverlayer')].map((one) => one.textContent).join()"
    chrome.wait(lambda: "token 2" in str(chrome.evaluate(shown)))
    assert "200 ms after the one before" in chrome.evaluate(shown)

    line = "getComputedStyle(document.querySelector('#delivery-0 .scatterlayer .js-line')).stroke"
    light = chrome.evaluate(line)
    chrome.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    chrome.wait(lambda: bool(chrome.evaluate(line) != light))
    assert chrome.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(18, 22, 27)"
    chrome.call("Emulation.setEmulatedMedia", features=[])
    chrome.wait(lambda: bool(chrome.evaluate(line) == light))
    assert chrome.complaints() == []
