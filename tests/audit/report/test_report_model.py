"""What a report is built from: groups, labels, clocks, and what it says of what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.audit.report_tables import T0_NS, requests_of, windows_of

from otel_llm.audit.compare.tiers import Key, Met, Tiers
from otel_llm.audit.report.data_quality import basis_lines
from otel_llm.audit.report.report import build
from otel_llm.audit.report.report_model import ReportModel, by_class, clock_of, groups, label
from otel_llm.rules.files.slo_file import load_slo

REQUEST = {"trace_id": "a" * 32, "span_id": "b" * 16, "outcome": "completed", "tokens": 10, "start_unix_nano": T0_NS}


def model(
    requests: pd.DataFrame, counts: Mapping[str, int] | None = None, windows: pd.DataFrame | None = None, **more: Any
) -> ReportModel:
    summary: dict[str, Any] = {"requests": len(requests), "tokens": 0, "span_s": None, "skipped": 0, "classes": {}}
    windows = windows_of([{"window_start_unix_nano": T0_NS}]) if windows is None else windows
    return ReportModel(requests, windows, summary, load_slo(None), 10**10, ("x",), {}, counts, lambda _: None, **more)


def test_groups_are_in_order_of_name_and_null_is_last() -> None:
    table = requests_of([{"instance": one} for one in ("b", None, "a", "b", "")])
    found = [(key[0], rows.tolist()) for key, rows in groups(table, ("instance",))]

    assert found == [("", [4]), ("a", [2]), ("b", [0, 3]), (None, [1])]
    assert [(name, place) for name, place, _ in by_class(requests_of([{}]))] == [("chat", "client")]
    assert by_class(requests_of([])) == []


@given(st.text(max_size=120), st.integers(10, 60))
def test_a_label_is_bounded_and_no_markup(text: str, limit: int) -> None:
    found = label(text, limit)
    assert not {"<", ">"} & set(found)
    # A sign becomes an entity of at most five characters, a control character its number.
    assert len(found) <= 10 * limit


def test_a_long_name_is_cut_in_the_middle() -> None:
    names = [f"pod/vllm-llama-3-70b-instruct-deployment-7f9c8d-{place:02d}" for place in range(3)]
    assert len({label(name, 28) for name in names}) == 3
    assert label(names[0], 28) == "pod/vllm-…eployment-7f9c8d-00"[:9] + "…" + names[0][-18:]
    assert label(None) == "–"


def test_what_a_token_is_is_counted_by_class() -> None:
    rows: list[dict[str, Any]] = [
        {"token_basis": "exact", "tokens": 30},
        {"token_basis": "exact", "tokens": None},
        {"token_basis": "estimated", "tokens": 5},
        {"token_basis": None, "tokens": None},
        {"token_basis": "chunk", "tokens": 7, "slo_class": "voice"},
    ]
    lines = basis_lines(model(requests_of(rows)))

    assert [(line[0], line[1].split(":")[0], *line[2:]) for line in lines] == [
        ("chat, client", "exact", "2", "50 %", "30"),
        ("chat, client", "estimated", "1", "25 %", "5"),
        ("chat, client", "not stated", "1", "25 %", "0"),
        ("voice, client", "chunk", "1", "100 %", "7"),
    ]


def test_a_clock_without_an_anchor_is_reported_and_gives_no_dates() -> None:
    start = 5 * 10**9
    requests = requests_of([REQUEST | {"start_unix_nano": start}])
    windows = windows_of([{"window_start_unix_nano": start}])
    page = build(model(requests, {"anomaly.clock_unanchored": 3}, windows))

    assert not clock_of(requests, "start_unix_nano").anchored
    assert "not anchored to the wall clock (counted 3 times)" in page
    assert "1970" not in page.split("<script>")[0]
    assert "The first was sent at" not in page
    assert "not anchored" not in build(model(requests_of([REQUEST]), {}))


def test_requests_without_a_start_are_not_drawn_against_load() -> None:
    page = build(model(requests_of([REQUEST]), {"anomaly.no_start_times": 1}))
    assert "nothing over time, of load or per second holds" in page
    reported = "Not drawn: some requests have no known time of sending."
    assert page.count(reported) == 1
    alone = build(model(requests_of([REQUEST | {"start_unix_nano": 0}] * 2), {"anomaly.no_start_times": 1}))
    assert alone.count(reported) == 3
    assert "'windows-0'" not in alone


def test_classes_as_tiers_stand_side_by_side_where_they_are_given() -> None:
    counts: dict[Key, dict[str, Met]] = {("chat", "client", "m", "i"): {"chat": Met(3, 1, 2), "voice": Met(1, 3, 2)}}
    page = build(model(requests_of([REQUEST]), {}, tiers=Tiers(("chat", "voice"), counts)))

    assert "The classes as tiers" in page
    assert "<td>6</td><td>75 %</td><td>25 %</td>" in page
    assert "The classes as tiers" not in build(model(requests_of([REQUEST]), {}))


@pytest.mark.parametrize("windows", [windows_of([]), windows_of([{"window_start_unix_nano": T0_NS}])])
def test_little_or_nothing_to_draw_is_a_page_all_the_same(windows: pd.DataFrame) -> None:
    for rows in ([], [REQUEST], [REQUEST | {"start_unix_nano": None, "idle_s": 3.0}]):
        assert "What the figures can hide" in build(model(requests_of(rows), {}, windows))
