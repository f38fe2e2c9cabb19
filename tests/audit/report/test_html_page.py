"""The page's parts: nothing from outside becomes markup, and only the page's own scripts may run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.audit.report.html_page import contents, facts, key, page, picture, script_json, table, text, values

HOSTILE = "</script><img src=x onerror=alert(1)>\"'><svg onload=alert(2)>&lt;\u202e\x00\x1b[31m"


class Reader(HTMLParser):
    """What a browser would see: the elements with their attributes, the text, and each script's content."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inside = False
        self.scripts: list[tuple[dict[str, str | None], str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self.inside:
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
        self.words.append(data)


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


@given(st.text())
def test_any_text_stays_text(value: str) -> None:
    assert read(f'<p title="{text(value)}">{text(value)}</p>').elements == [("p", {"title": text_of(value)})]


def text_of(value: str) -> str:
    return "".join(read(f"<p>{text(value)}</p>").words)


def test_tables_facts_and_pictures_escape_what_they_are_given() -> None:
    markup = (
        table([HOSTILE, HOSTILE], [[HOSTILE], [HOSTILE, HOSTILE]], caption=HOSTILE)
        + facts([(HOSTILE, HOSTILE)])
        + picture("delivery-0", HOSTILE, HOSTILE, "")
        + values("", HOSTILE)
        + key([HOSTILE])
        + contents([(HOSTILE, HOSTILE)])
    )

    names = {name for name, _ in read(markup).elements}
    assert names <= {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "figure"} | {
        "figcaption",
        "h3",
        *("details", "summary", "ul", "li", "i", "nav", "a"),
    }
    attributes = {key for _, given in read(markup).elements for key in given}
    assert not {key for key in attributes if key.startswith("on")}


@given(st.recursive(st.text() | st.integers() | st.none() | st.booleans(), st.lists))
def test_data_survives_its_script_element_and_cannot_leave_it(value: object) -> None:
    written = script_json(value)

    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == value


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        script_json([float("nan")])


def test_only_the_two_scripts_of_the_page_are_allowed_to_run() -> None:
    markup = page("t", "<p>x</p>", {"delivery-0": {"data": [], "layout": {}}})
    reader = read(markup)
    policy = next(given["content"] for name, given in reader.elements if given.get("http-equiv"))
    assert policy is not None
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    running = [content for given, content in reader.scripts if given.get("type") is None]

    assert policy.startswith("default-src 'none';")
    assert "unsafe-eval" not in policy
    assert len(running) == len(allowed) == 2
    assert {base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in running} == allowed
    assert not [given for name, given in reader.elements if given.get("src")]
    assert {given["href"] for name, given in reader.elements if "href" in given} == {"#main"}


def test_a_page_without_figures_carries_no_script() -> None:
    markup = page("t", "<p>x</p>", {})

    assert "<script" not in markup
    assert "script-src 'none'" in markup
    assert len(markup) < 20_000
