"""Draw figures 1 and 2 of Wang et al., and the output delay trick, with the audit's own report.

Makes recorded telemetry, audits it, and writes `recorded.jsonl`, `figures.html` and, if a Chromium is installed,
`figure-1.png`, `figure-2.png` and `held-back.png`. The same every time. Run it from anywhere:

    python examples/paper-figures/draw.py [FOLDER]
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import otel_llm.audit
from otel_llm.audit.report.delivery_sections import Chosen
from otel_llm.audit.report.report import render_deliveries

HERE = Path(__file__).parent
T0_NS = 1_790_000_000_000_000_000
MS = 1_000_000

LEAD = (
    "Wang et al., Revisiting Service Level Objectives and System Level Metrics in Large Language Model Serving: the "
    "gap between two tokens says little, and what counts is whether the reader still has text. Drawn by the report of "
    "otel-llm from recorded telemetry (recorded.jsonl); nothing in the pictures is placed by hand."
)


@dataclass(frozen=True)
class Delivery:
    """One delivery: the class of its reader, when its tokens came (ms since the request), and what it shows."""

    slo_class: str
    tokens_ms: tuple[int, ...]
    title: str
    note: str
    until_ms: int


def every(first_ms: int, last_ms: int, gap_ms: int) -> tuple[int, ...]:
    """Return times at an even pace, both ends included."""
    return tuple(range(first_ms, last_ms + 1, gap_ms))


DELIVERIES = (
    Delivery(
        "figure1",
        every(100, 1000, 100) + every(2000, 2900, 100),
        "Figure 1, above: a gap of one second without a wait",
        "Ten tokens in the first second, then nothing for one second. Someone who reads 4 tokens per second still has "
        "text all the while: a TBT of 1 s cries wolf.",
        5500,
    ),
    Delivery(
        "figure1",
        (100, 200, *every(1200, 2100, 100)),
        "Figure 1, below: the same gap behind two tokens",
        "Two tokens, then the same second of nothing. The reader has used up the text and waits. The longest gap is "
        "the same, the average gap hardly larger: neither tells this reply from the one above.",
        5500,
    ),
    Delivery(
        "figure2",
        every(1000, 4000, 100) + every(6000, 7100, 100) + every(10_000, 15_000, 1000) + every(15_100, 19_000, 100),
        "Figure 2: the anatomy of a delivery",
        "First the wait for the first token. Then gaps of 2 s (from 4 s) and of 2.9 s (from 7.1 s) behind enough text: "
        "not felt. Up to 15 s one token a second, with nothing in store: felt. The fast end cannot make up for it: the "
        "tangent at reading speed, here 4.5 tokens per second, stays that much later.",
        29_000,
    ),
    Delivery(
        "held-back",
        every(100, 1080, 20) + every(2600, 3580, 20),
        "The output delay trick, before: tokens as they are generated",
        "A burst, a gap of 1.52 s, a second burst. The reader never runs out of text.",
        21_000,
    ),
    Delivery(
        "held-back",
        every(200, 20_000, 200),
        "The output delay trick, after: the same tokens held back to one every 200 ms",
        "Every token comes later than above, and yet the longest gap falls from 1.52 s to 200 ms: a better TBT, "
        "bought with delay. The idle time is no better: it cannot be, by any delay.",
        21_000,
    ),
)
PICTURES = (
    ("figure-1.png", "Wang et al., figure 1", (0, 1), 1480),
    ("figure-2.png", "Wang et al., figure 2", (2,), 850),
    ("held-back.png", "The output delay trick", (3, 4), 1410),
)
"""File, title, positions among the deliveries, height in pixels."""


def export_request(number: int, delivery: Delivery) -> dict[str, Any]:
    """Return the telemetry of one delivery as OTLP JSON: the commit, segments of 20 tokens, the end."""
    commit_ns = T0_NS + number * 60_000 * MS
    times_ns = [commit_ns + at * MS for at in delivery.tokens_ms]
    pieces = [times_ns[i : i + 20] for i in range(0, len(times_ns), 20)]
    identity = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "paper",
        "otel_llm.slo.class": delivery.slo_class,
        "otel_llm.measured_at": "client",
    }
    spans = [segment(number, 0, 0, commit_ns, commit_ns, [], identity)]
    start_ns = commit_ns
    for seq, piece in enumerate(pieces, start=1):
        reported: dict[str, str | int] = {}
        if seq == len(pieces):
            reported = {
                "otel_llm.outcome": "completed",
                "otel_llm.tokens": len(times_ns),
                "otel_llm.token_basis": "exact",
                "otel_llm.segments": len(pieces) + 1,
            }
        spans.append(segment(number, seq, (seq - 1) * 20, start_ns, piece[-1], piece, reported))
        start_ns = piece[-1]
    return {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "otel_llm"}, "spans": spans}]}]}


def segment(
    number: int,
    seq: int,
    first_token: int,
    start_ns: int,
    end_ns: int,
    times_ns: list[int],
    attributes: dict[str, Any],
) -> dict[str, Any]:
    """Return one segment span as OTLP JSON."""
    placing = {"otel_llm.segment.seq": seq, "otel_llm.segment.first_token": first_token, **attributes}
    return {
        "traceId": f"{number + 1:032x}",
        "spanId": f"{(number + 1) * 1000 + seq:016x}",
        "parentSpanId": f"{number + 1:016x}",
        "name": "otel_llm.segment",
        "kind": 1,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "attributes": [
            {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
            for key, value in placing.items()
        ],
        "events": [{"timeUnixNano": str(at), "name": "token"} for at in times_ns],
    }


def draw(folder: Path) -> None:
    """Write the telemetry, the page and, if there is a browser, the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    recorded = folder / "recorded.jsonl"
    lines = [json.dumps(export_request(number, one), separators=(",", ":")) for number, one in enumerate(DELIVERIES)]
    recorded.write_text("\n".join(lines) + "\n", encoding="utf-8")

    audit = otel_llm.audit.load(recorded, slo=HERE / "slo.yaml")
    chosen = [Chosen(i, one.title, one.note, one.until_ms * MS) for i, one in enumerate(DELIVERIES)]
    page = render_deliveries(audit, chosen, title="What a gap between two tokens does not say", lead=LEAD)
    (folder / "figures.html").write_text(page, encoding="utf-8")

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium found: the page is written, the pictures are not", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as work:
        for name, title, positions, height in PICTURES:
            single = Path(work) / "page.html"
            single.write_text(render_deliveries(audit, [chosen[i] for i in positions], title=title), encoding="utf-8")
            photograph(browser, single, folder / name, height)


def photograph(browser: str, page: Path, picture: Path, height: int) -> None:
    """Write a PNG of a page as a headless browser shows it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]
        command += [f"--user-data-dir={profile}", "--virtual-time-budget=5000", f"--window-size=1000,{height}"]
        command += [f"--screenshot={picture.resolve()}", page.resolve().as_uri()]
        subprocess.run(command, check=True, timeout=120, capture_output=True)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
