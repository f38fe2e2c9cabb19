"""The heat map of starving: seconds by instance and time, and gaps that are no zeros."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.audit.figures import check
from support.audit.report_tables import T0_NS, windows_of

from otel_llm.audit.report.charts.starving_map import (
    MOST_COLUMNS,
    MOST_ROWS,
    instance_lines,
    row_name,
    starving,
    starving_figure,
)
from otel_llm.audit.report.report_model import Clock

S = 1_000_000_000
WIDTH_NS = 10 * S


def window(instance: str | None, start_s: int, idle_s: float, **more: Any) -> dict[str, Any]:
    start = T0_NS + start_s * S
    return {"instance": instance, "window_start_unix_nano": start, "idle_s_sum": idle_s, **more}


def cells(found: Any) -> list[list[float | None]]:
    return [[None if math.isnan(cell) else cell for cell in line] for line in found.idle_s.tolist()]


def test_waiting_is_added_up_by_instance_and_step_over_classes_and_models() -> None:
    rows = [
        window("b", 0, 1.0),
        window("a", 0, 2.0),
        window("a", 0, 0.5, slo_class="voice"),
        window("a", 20, 4.0, model="other"),
        window(None, 10, 0.0),
    ]
    found = starving(windows_of(rows), WIDTH_NS)

    assert found.names == ["a", "b", None]
    assert cells(found) == [[2.5, None, 4.0], [1.0, None, None], [None, 0.0, None]]
    figure = starving_figure(found, Clock(T0_NS))
    check(figure)
    (trace,) = figure["data"]
    assert trace["z"] == cells(found)
    assert (trace["zmin"], trace["zmax"]) == (0, 4.0)
    # Borders of the steps, one more than there are steps: a single step has a width too.
    assert trace["x"] == [f"2026-09-21 14:13:{second}.000" for second in (20, 30, 40, 50)]
    assert figure["layout"]["yaxis"]["ticktext"] == ["a", "b", "no instance named"]
    assert "4 s of waiting, 0.4 readers on average" in trace["text"][0][2]
    assert "nothing going on" in trace["text"][1][1]
    assert [line[:2] for line in instance_lines(found, Clock(T0_NS))] == [
        ("a", "6.5 s"),
        ("b", "1 s"),
        ("no instance named", "0 s"),
    ]


def test_many_instances_are_the_heaviest_and_the_rest_and_nothing_is_lost() -> None:
    rows = [window(f"i{place:03d}", 0, float(place)) for place in range(100)]
    found = starving(windows_of(rows), WIDTH_NS)

    assert len(found.names) == MOST_ROWS
    assert found.names[:2] == ["i071", "i072"]
    assert row_name(found, MOST_ROWS - 1) == "71 other instances"
    assert np.nansum(found.idle_s) == sum(range(100))
    check(starving_figure(found, Clock(T0_NS)))


def test_many_windows_are_steps_of_equal_length_and_nothing_is_lost() -> None:
    rows = [window("a", 10 * place, 1.0) for place in range(1000)]
    found = starving(windows_of(rows), WIDTH_NS)

    assert found.idle_s.shape[1] <= MOST_COLUMNS
    assert found.step_ns == 9 * WIDTH_NS
    assert np.nansum(found.idle_s) == pytest.approx(1000)


def test_nobody_waiting_is_drawn_as_nothing_and_not_as_the_worst() -> None:
    figure = starving_figure(starving(windows_of([window("a", 0, 0.0)]), WIDTH_NS), Clock(T0_NS))
    check(figure)
    assert figure["data"][0]["zmax"] == 1.0
