"""The live view's figures by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from rich.console import Console

from otel_llm.bench.client.load_run import LoadRun
from otel_llm.bench.client.observed_request import ObservedRequest
from otel_llm.bench.live_figures import LiveFigures
from otel_llm.cli.commands.bench_command import view
from otel_llm.slo.classes import SloClass

SECOND = 10**9
CHAT = SloClass()
"""A reader of 5 tokens a second."""


@dataclass
class Run:
    watermark_ns: int
    started_ns: int = 0


def _request(number: int, sent_s: float, tokens_s: list[float]) -> ObservedRequest:
    made = ObservedRequest(number, round(sent_s * SECOND), round(sent_s * SECOND), 1, 1)
    made.extend([round(one * SECOND) for one in tokens_s])
    return made


def test_rate_flight_waiting_and_first_tokens() -> None:
    figures = LiveFigures(CHAT, 30 * SECOND)
    ended = _request(0, 0.0, [0.1, 0.2])
    reading = _request(1, 1.0, [1.5, *[1.6] * 50])  # ten seconds of text
    starving = _request(2, 2.0, [2.3])
    silent = _request(3, 3.0, [])
    figures.observe([ended, reading, starving, silent])
    ended.end_ns, ended.error = SECOND // 4, "closed_early"
    figures.observe([ended])
    now = figures.snapshot(cast("LoadRun", Run(4 * SECOND)))
    assert (now.sent, now.ended, now.failed, now.in_flight) == (4, 1, 1, 3)
    assert now.waiting == 2  # one has read all, one has nothing yet
    assert now.rate == 1.0
    assert now.ttft_s == 0.3  # of 0.1, 0.5 and 0.3
    assert now.left_s == 26.0
    starving.extend([round(3.9 * SECOND)] * 5)
    figures.observe([starving])
    later = figures.snapshot(cast("LoadRun", Run(4 * SECOND)))
    assert later.waiting == 1


def test_what_is_older_than_ten_seconds_is_no_rate() -> None:
    figures = LiveFigures(CHAT, None)
    figures.observe([_request(0, 0.0, [0.1]), _request(1, 14.0, [14.5])])
    now = figures.snapshot(cast("LoadRun", Run(20 * SECOND)))
    assert now.rate == 0.1
    assert now.ttft_s == 0.5
    assert now.left_s is None


def test_the_view_shows_every_figure() -> None:
    figures = LiveFigures(CHAT, 30 * SECOND)
    figures.observe([_request(0, 0.0, [0.25])])
    console = Console(width=100)
    with console.capture() as shown:
        console.print(view(figures.snapshot(cast("LoadRun", Run(2 * SECOND)))))
    heading, line = shown.get().splitlines()
    assert heading.split("  ")[0] == "sent"
    for word in ("requests/s", "in flight", "waiting now", "TTFT", "time left"):
        assert word in heading
    for cell in ("0.5", "250 ms", "28 s"):
        assert cell in line
