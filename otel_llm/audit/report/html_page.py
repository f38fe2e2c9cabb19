"""One self-contained HTML page: escaped text, tables, charts, and no access to the network.

The content policy allows exactly the page's own two scripts, by their hashes: even a string of telemetry that slipped
through the escaping could not run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
from typing import TYPE_CHECKING, Any

from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def text(value: object, limit: int = 300) -> str:
    """Escape one value for use as HTML text or as an attribute in double quotes; control characters become visible."""
    return html.escape(printable(str(value), limit), quote=True)


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    caption: str = "",
    text_columns: Sequence[int] = (),
    kind: str = "",
    marks: Mapping[str, str] | None = None,
) -> str:
    """Write a table whose first column heads its rows; `text_columns` are the others that hold text, not numbers.

    A row of one cell heads the group of rows below it. `marks` gives cells of exactly this text a class of the sheet.
    """
    head = "".join(
        f"<th scope='col'{_classes('words' if index in text_columns else '')}>{text(name)}</th>"
        for index, name in enumerate(headings)
    )
    lines: list[str] = []
    for row in rows:
        if len(row) == 1:
            lines.append(f"<tr class='group'><th colspan='{len(headings)}' scope='colgroup'>{text(row[0])}</th></tr>")
            continue
        cells = "".join(
            f"<td{_classes('words' if i in text_columns else '', (marks or {}).get(str(cell), ''))}>{text(cell)}</td>"
            for i, cell in enumerate(row[1:], start=1)
        )
        lines.append(f"<tr><th scope='row'>{text(row[0])}</th>{cells}</tr>")
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    style = f" class='{kind}'" if kind else ""
    body = "\n".join(lines)
    return (
        f"<div class='scroll'><table{style}>{title}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Write a line of named values."""
    inner = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in pairs)
    return f"<dl class='facts'>{inner}</dl>"


def picture(name: str, title: str, alt: str, above: str, below: str = "") -> str:
    """Write the place of a figure: its title, markup above and below it, and a description (`alt`).

    It can have the keyboard's focus: the page's script then shows the values at the arrow keys.
    """
    return (
        f"<figure id='{text(name)}-figure'><figcaption><h3>{text(title)}</h3>{above}</figcaption>"
        f"<div class='plot' id='{text(name)}' role='img' tabindex='0' aria-label=\"{text(alt, 1000)}\"></div>"
        f"{below}</figure>"
    )


def values(inner: str, words: str = "The values") -> str:
    """Write the values of a chart as a table that can be opened."""
    return f"<details><summary>{text(words)}</summary>{inner}</details>"


def key(names: Iterable[str]) -> str:
    """Write a legend: the colour and line of each curve, in the order of the palette."""
    inner = "".join(f"<li><i class='line l{place}'></i>{text(name)}</li>" for place, name in enumerate(names, start=1))
    return f"<ul class='key'>{inner}</ul>"


def contents(sections: Iterable[tuple[str, str]]) -> str:
    """Write the links to the sections of the page: (id, heading)."""
    inner = "".join(f"<li><a href='#{text(name)}'>{text(heading)}</a></li>" for name, heading in sections)
    return f"<nav aria-label='Contents'><ul>{inner}</ul></nav>"


def page(title: str, body: str, figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the whole page; `figures` maps the names given to `picture` to figures."""
    style = _asset("page.css")
    scripts = [plotly_script(), _asset("page.js")] if figures else []
    allowed = " ".join(f"'sha256-{_script_hash(script)}'" for script in scripts) or "'none'"
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    data = f"<script type='application/json' id='figures'>{script_json(figures)}</script>" if figures else ""
    inlined = "\n".join(f"<script>{script}</script>" for script in scripts)
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        "<meta name='referrer' content='no-referrer'>\n"
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        "<a class='skip' href='#main'>Skip to the figures</a>\n"
        f"<div class='paper' hidden></div>\n<main id='main' tabindex='-1'>\n{body}\n</main>\n{data}\n{inlined}\n"
        "</body>\n</html>\n"
    )


def script_json(value: object) -> str:
    """Write JSON that no HTML parser can read as markup: `<`, `>`, `&` and the two line separators are escaped.

    Raises ValueError for NaN and infinities.
    """
    plain = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        plain = plain.replace(character, f"\\u{ord(character):04x}")
    return plain


def plotly_script() -> str:
    """Return plotly's own script, which the page carries once.

    It is the part of plotly.js for plots with two axes, as its authors publish it: a third of the whole, and faster to
    load.
    """
    return _asset("plotly-cartesian.min.js")


def _asset(name: str) -> str:
    return importlib.resources.files("otel_llm.audit").joinpath(name).read_text("utf-8")


def _script_hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _classes(*names: str) -> str:
    kept = " ".join(name for name in names if name)
    return f" class='{kept}'" if kept else ""
