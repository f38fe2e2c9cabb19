"""Draw what figure 10 of Wang et al. shows: contention grows; the TBT rule fires at a, the idle rule at b or never.

Writes `figure-10.json` (what the rule engine decided) and, if a Chromium is installed, `figure-10.png`. The same
every time:

    python examples/migration-triggers/figure_10.py [FOLDER]
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from day import compared_rules
from pacing import MS, Engine, Request, S, serve
from watching import triggers, waits, watch

from otel_llm.audit.report.charts.delivery_chart import timeline_figure
from otel_llm.audit.report.charts.timeline import build
from otel_llm.audit.report.html_page import page, picture, text
from otel_llm.rules.files.slo_file import load_slo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.slo.classes import SloClass

HERE: Final = Path(__file__).parent
MARKS: Final = (("Tbt50ms", "a: gap over 50 ms"), ("Tbt200ms", "a: gap over 200 ms"), ("Idle", "b: no text left"))


@dataclass(frozen=True, slots=True)
class Scene:
    """One panel: an engine, the requests that come to it, which of them is drawn, and for whom it writes."""

    title: str
    note: str
    engine: Engine
    requests: tuple[Request, ...]
    drawn: int
    slo_class: str


def growing_batch() -> Scene:
    """A decode instance that fills up: 255 more streams within 5.1 s, whose contexts then grow with the drawn one's."""
    requests = (Request(0, 800, 1000), *(Request(20 * MS * i, 800, 800) for i in range(1, 256)))
    note = (
        "One instance that only decodes. Batch and contexts grow, so the step grows from 12 ms to 52 ms. A chat reader "
        "(5 tokens/s) has most of the reply in store by then: the TBT rule moves the request, the idle rule never does."
    )
    return Scene("A decode instance fills up, read as chat", note, "decode", requests, 0, "chat")


def growing_arrivals() -> Scene:
    """An engine that takes in prompts too: after 30 s of 4 requests/s, the rate grows to 12/s within 20 s."""
    start_ns, at_ns = 30 * S, 0
    requests = [Request(start_ns, 1155, 601)]
    while at_ns < 80 * S:
        per_minute = 240 + 480 * min(20 * S, max(0, at_ns - start_ns)) // (20 * S)
        at_ns += 60 * S // per_minute
        requests.append(Request(at_ns, 1155, 211))
    requests.sort()
    note = (
        "One engine for prompts and decode; arrivals grow from 4 to 12 a second, more than it can take (8.7). The "
        "reader skims (20 tokens/s, the shipped class code): what was delivered early lasts for six seconds after a."
    )
    drawn = requests.index(Request(start_ns, 1155, 601))
    return Scene("Prompts crowd out the decode, read as code", note, "mixed", tuple(requests), drawn, "code")


def decide(scene: Scene, slo: SloClass) -> dict[str, Any]:
    """Serve a scene and have the engine watch its stream; instants in ns since its commit."""
    commit_ns = scene.requests[scene.drawn].at_ns
    tokens_ns = serve(scene.requests, scene.engine).tokens_ns(scene.drawn)
    fired = triggers(watch(compared_rules(), slo, commit_ns, tokens_ns))
    return {
        "title": scene.title,
        "tokens_ns": [at_ns - commit_ns for at_ns in tokens_ns],
        "fired_ns": {name: at_ns - commit_ns for name, at_ns in sorted(fired.items())},
        "waits_ns": [
            (wait.start_ns - commit_ns, wait.end_ns - commit_ns, wait.waited_ns)
            for wait in waits(tokens_ns, slo.pace_ns)
        ],
    }


def draw(folder: Path) -> None:
    """Write what was decided and, if there is a browser, the picture."""
    folder.mkdir(parents=True, exist_ok=True)
    scenes = [growing_batch(), growing_arrivals()]
    classes = [load_slo().get(scene.slo_class) for scene in scenes]
    found = [decide(scene, slo) for scene, slo in zip(scenes, classes, strict=True)]
    (folder / "figure-10.json").write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium found: the decisions are written, the picture is not", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "page.html"
        file.write_text(_page(scenes, classes, found), encoding="utf-8")
        photograph = runpy.run_path(str(HERE.parent / "paper-figures" / "draw.py"))["photograph"]
        photograph(browser, file, folder / "figure-10.png", 1270)


def _page(scenes: Sequence[Scene], classes: Sequence[SloClass], found: Sequence[dict[str, Any]]) -> str:
    figures: dict[str, Any] = {}
    parts = []
    for number, (scene, slo, one) in enumerate(zip(scenes, classes, found, strict=True)):
        tokens_ns, name = one["tokens_ns"], f"scene-{number}"
        figure = timeline_figure(build(tokens_ns, tokens_ns[-1], "completed", slo), slo, height=400)
        marked = [(one["fired_ns"][rule], words) for rule, words in MARKS if rule in one["fired_ns"]]
        for index, (at_ns, words) in enumerate(marked):
            _mark(figure, at_ns, words, index)
        figures[name] = figure
        reported = ", ".join(f"{words} at {at_ns / S:.1f} s" for at_ns, words in marked)
        reported += "" if "Idle" in one["fired_ns"] else ", b: never"
        parts.append(
            picture(name, scene.title, reported, f"<p class='quiet'>{text(scene.note)}</p><p>{text(reported)}</p>")
        )
    body = "\n".join(parts)
    return page("Wang et al., figure 10", f"<header><h1>When to move a request</h1></header>\n{body}", figures)


def _mark(figure: dict[str, Any], at_ns: int, words: str, place: int) -> None:
    colour = "$waitingtext" if words.startswith("b") else "$deadline"
    figure["layout"]["shapes"].append(
        {
            "type": "line",
            "yref": "y domain",
            "x0": at_ns / S,
            "x1": at_ns / S,
            "y0": 0,
            "y1": 1,
            "line": {"color": colour, "width": 2, "dash": "dash"},
        }
    )
    figure["layout"]["annotations"].append(
        {
            "x": at_ns / S,
            "y": 0.98 - 0.09 * place,
            "yref": "y domain",
            "xanchor": "right" if at_ns > 5 * S else "left",
            "text": f" {words} ",
            "showarrow": False,
            "font": {"color": colour, "size": 13},
        }
    )


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
