"""The figures are valid plotly figures, bounded in size, and hold no string from telemetry."""

from __future__ import annotations

import json

import pytest
from support.audit.figures import check
from support.pairwise import pairwise

from otel_llm.audit.report.charts.delivery_chart import COLUMNS, MOST_SHADES, timeline_figure
from otel_llm.audit.report.charts.timeline import build
from otel_llm.slo.classes import Deadline, SloClass

MS = 1_000_000
FIGURE_1B = [at * MS for at in (100, 200, *range(1200, 2101, 100))]

POLICIES = [
    Deadline("reading", 0),
    Deadline("reading", 1000 * MS),
    Deadline("dslo", 300 * MS, 30 * MS),
    Deadline("ttft_tbt", 1000 * MS, 100 * MS),
    Deadline("ttft_tpot", 1000 * MS, 100 * MS),
    Deadline("e2e", 1500 * MS),
    Deadline("e2e", 90_000 * MS),
]


@pytest.mark.parametrize(
    *pairwise(
        {
            "deadline": POLICIES,
            "outcome": ["completed", "error"],
            "tokens": [FIGURE_1B, [], [0], [50 * MS] * 7],
            "until_ns": [None, 0, 900 * MS, 60_000 * MS],
        }
    )
)
def test_every_kind_of_delivery_is_a_valid_figure(
    deadline: Deadline, outcome: str, tokens: list[int], until_ns: int | None
) -> None:
    slo = SloClass(pace_ns=250 * MS, deadline=deadline)
    check(timeline_figure(build(tokens, 4000 * MS, outcome, slo), slo, until_ns=until_ns))


def test_figure_1b_shades_its_stall_and_names_the_tangent() -> None:
    slo = SloClass(pace_ns=250 * MS, deadline=Deadline("reading", 0))
    figure = timeline_figure(build(FIGURE_1B, 2100 * MS, "completed", slo), slo)

    (shade,) = figure["layout"]["shapes"]
    assert (shade["x0"], shade["x1"]) == (0.75, 1.2)
    names = [trace["name"] for trace in figure["data"]]
    assert names == [
        "reader without waits",
        "tangent, 450 ms later",
        "reader",
        "delivered",
        "waits for the first token",
        "waits for text",
        "reads",
    ]
    hover = figure["data"][3]["text"]
    assert "the reader waited 450 ms for it" in hover[3]
    assert "1 s after the one before" in hover[3]


def test_the_shades_of_a_stall_of_several_late_tokens_add_up_to_its_label() -> None:
    # The reader wants a token each 100 ms; five in a row come after 300 ms each: 200 ms of waiting for each of them.
    slo = SloClass(pace_ns=100 * MS, deadline=Deadline("reading", 0))
    figure = timeline_figure(build([at * 300 * MS for at in range(1, 6)], 1500 * MS, "completed", slo), slo)

    assert len(figure["layout"]["shapes"]) == 5
    assert sum(shade["x1"] - shade["x0"] for shade in figure["layout"]["shapes"]) == pytest.approx(1.0)
    assert [label["text"] for label in figure["layout"]["annotations"]] == ["waits 1 s"]


def test_a_reply_of_a_hundred_thousand_tokens_stays_a_small_figure() -> None:
    slo = SloClass(pace_ns=1 * MS)
    tokens = [at * 3 * MS + (at % 7) * 5 * MS for at in range(100_000)]
    figure = timeline_figure(build(sorted(tokens), tokens[-1], "completed", slo), slo)

    assert max(len(trace["x"]) for trace in figure["data"]) <= 2 * COLUMNS + 2
    assert len(figure["layout"]["shapes"]) <= MOST_SHADES
    assert len(json.dumps(figure)) < 600_000
    check(figure)
