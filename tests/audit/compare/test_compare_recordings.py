"""Two recordings beside each other: figures are the summary's, changes are signed, gates shut if they must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.audit.judged import judged
from support.recordings import vector_classes, vector_messages, write_format
from support.vectors import FOLDER

import otel_llm.audit
from otel_llm.audit.compare import comparison as compare
from otel_llm.audit.compare import gate
from otel_llm.audit.compare.bootstrap import Drawing
from otel_llm.audit.compare.comparison import Change, Comparison, compare_tables
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.figures import FIGURES

CLASSES = load_slo()
QUICK = Drawing(resamples=300)


def waits(count: int, slower: float, seed: int, **columns: object) -> pa.Table:
    idle = np.random.default_rng(seed).exponential(slower, count)
    return judged(count, idle_s=idle, met=(idle <= 1).tolist(), benefit=100 - 2.5 * idle, ttft_s=idle / 10, **columns)


def of(found: Comparison, figure: str, **group: str | None) -> Change:
    (change,) = (
        one
        for one in found.changes
        if one.figure == figure and all(getattr(one, name) == value for name, value in group.items())
    )
    return change


def test_the_figures_are_those_of_the_summary(tmp_path: Path) -> None:
    vectors = write_format(tmp_path, "journal.otlp", vector_messages())
    for audit in (otel_llm.audit.load(FOLDER / "rows.jsonl"), otel_llm.audit.load(vectors, slo=vector_classes())):
        found = compare.compare(audit, audit, drawing=Drawing(resamples=100))
        figures = {
            (name, place, key): value
            for name, places in audit.summary()["classes"].items()
            for place, mine in places.items()
            for key, value in mine.items()
        }
        ours = {(one.slo_class, one.measured_at, one.figure): one for one in found.changes}
        assert {key[2] for key in ours} - {key[2] for key in figures} == {"benefit_mean_tokens"}
        for key, value in figures.items():
            assert ours[key].old == ours[key].new == value, key
        assert all(one.difference in (0, None) for one in found.changes)


def test_a_change_for_the_worse_is_reported_and_one_by_chance_is_not() -> None:
    found = compare_tables(waits(2000, 1.0, 1), waits(2000, 1.6, 2), CLASSES, drawing=QUICK)
    same = compare_tables(waits(2000, 1.0, 1), waits(2000, 1.0, 3), CLASSES, drawing=QUICK)
    back = compare_tables(waits(2000, 1.6, 2), waits(2000, 1.0, 1), CLASSES, drawing=QUICK)

    for figure in ("attainment", "idle_p50_s", "idle_p99_s", "ttft_p50_s", "smooth_goodput_tok_s", "goodput_req_s"):
        assert of(found, figure).verdict == "worse", figure
        assert of(back, figure).verdict == "better", figure
        assert of(same, figure).verdict == "not shown", figure


def test_differences_and_ratios_are_new_against_old() -> None:
    change = of(compare_tables(waits(2000, 1.0, 1), waits(2000, 2.0, 2), CLASSES, drawing=QUICK), "idle_p50_s")
    assert change.old is not None
    assert change.new is not None
    assert change.difference == change.new - change.old
    assert change.ratio == change.new / change.old
    for low, middle, high in (
        (change.difference_low, change.difference, change.difference_high),
        (change.ratio_low, change.ratio, change.ratio_high),
    ):
        assert low is not None
        assert high is not None
        assert low < middle < high
    assert change.ratio_low == pytest.approx(2, abs=0.4)


def test_no_ratio_to_nothing_or_less() -> None:
    none = judged(50, idle_s=0.0, benefit=-1.0)
    some = judged(50, idle_s=1.0, benefit=10.0)
    found = compare_tables(none, some, CLASSES, drawing=QUICK)

    for figure in ("idle_p50_s", "smooth_goodput_tok_s"):
        change = of(found, figure)
        assert change.difference is not None
        assert (change.ratio, change.ratio_low, change.ratio_high) == (None, None, None)


def test_groups_of_one_recording_only_and_small_ones_say_so() -> None:
    old = pa.concat_tables([waits(40, 1.0, 1), waits(40, 1.0, 1, slo_class="voice")])
    new = pa.concat_tables([waits(40, 1.0, 2), waits(5, 1.0, 2, measured_at="server")])
    found = compare_tables(old, new, CLASSES, drawing=QUICK)

    assert of(found, "attainment", slo_class="voice").why == "no request in new"
    assert of(found, "attainment", measured_at="server").why == "no request in old"
    assert of(found, "attainment", slo_class="chat", measured_at="client").why == ""
    assert of(found, "idle_p99_s", slo_class="chat", measured_at="client").why == "too few: 40 of 368 in old"
    assert of(found, "fluid_token_rate", slo_class="chat", measured_at="client").why == "nothing to say of old"
    assert {one.verdict for one in found.changes if one.why} == {"cannot say"}
    assert all(one.difference_low is None for one in found.changes if one.why)


def test_by_model_splits_and_a_group_does_not_hang_on_the_others() -> None:
    old, new = waits(60, 1.0, 1, model="a"), waits(60, 1.0, 2, model="a")
    alone = compare_tables(old, new, CLASSES, by=["model"], drawing=QUICK)
    other = judged(30, model="b", idle_s=1.0, start_unix_nano=[10**9] * 30, end_unix_nano=[2 * 10**9] * 30)
    both = compare_tables(
        pa.concat_tables([old, other]), pa.concat_tables([new, other]), CLASSES, by=["model"], drawing=QUICK
    )

    assert {one.model for one in both.changes} == {"a", "b"}
    assert [one for one in both.changes if one.model == "a"] == list(alone.changes)
    assert {one.model for one in compare_tables(old, new, CLASSES, drawing=QUICK).changes} == {None}


def test_rates_are_per_second_of_the_span_and_other_loads_are_noted() -> None:
    old = waits(100, 1.0, 1)
    twice = waits(100, 1.0, 1, start_unix_nano=[at * 5 * 10**8 for at in range(100)], end_unix_nano=[50 * 10**9] * 100)
    found = compare_tables(old, twice, CLASSES, drawing=QUICK)

    assert of(found, "throughput_req_s").old == 1.0
    assert of(found, "throughput_req_s").new == 2.0
    assert of(found, "benefit_mean_tokens").difference == 0
    assert of(found, "smooth_goodput_tok_s").ratio == pytest.approx(2)
    assert of(found, "smooth_goodput_tok_s").verdict == "differs"  # twice the load, not a better service
    assert len(found.notes) == 1
    assert "1 requests/s in old, 2 in new" in found.notes[0]
    assert not compare_tables(old, old, CLASSES, drawing=QUICK).notes


def regressions(found: Comparison, limits: Mapping[str, gate.Threshold]) -> list[str]:
    return [one.sentence for one in gate.decisions(found, limits) if one.state == "worse"]


def test_a_gate_shuts_only_beyond_its_threshold() -> None:
    found = compare_tables(waits(2000, 1.0, 1), waits(2000, 1.3, 2), CLASSES, drawing=QUICK)
    change = of(found, "idle_p50_s")
    assert change.difference_low is not None

    assert regressions(found, gate.thresholds(["idle_p50_s=0"]))
    for by, shut in ((change.difference_low * 0.99, True), (change.difference_low * 1.01, False)):
        limits = {"idle_p50_s": gate.Threshold("idle_p50_s", by)}
        assert bool(regressions(found, limits)) is shut
    (sentence,) = regressions(found, {"attainment": gate.Threshold("attainment", 0.01)})
    assert sentence.startswith("chat, client: attainment is worse by more than 0.01: ")


def test_a_relative_threshold_is_a_share_of_the_old_value() -> None:
    found = compare_tables(waits(2000, 1.0, 1), waits(2000, 1.3, 2), CLASSES, drawing=QUICK)
    change = of(found, "attainment")
    assert change.old is not None
    assert change.difference_high is not None
    part = -change.difference_high / change.old

    assert regressions(found, {"attainment": gate.Threshold("attainment", part * 0.99, relative=True)})
    assert not regressions(found, {"attainment": gate.Threshold("attainment", part * 1.01, relative=True)})


def test_what_got_better_or_cannot_be_told_shuts_no_gate() -> None:
    better = compare_tables(waits(2000, 1.3, 2), waits(2000, 1.0, 1), CLASSES, drawing=QUICK)
    few = compare_tables(waits(10, 1.0, 2), waits(10, 9.0, 1), CLASSES, drawing=QUICK)
    limits = gate.thresholds([f"{name}=0" for name in gate.GATED])

    assert not regressions(better, limits)
    assert not regressions(few, limits)
    assert {"attainment", "idle_p50_s"} <= {
        one.change.figure for one in gate.decisions(few, limits) if one.state == "not judged"
    }


@pytest.mark.parametrize(
    ("text", "figure", "by", "relative"),
    [
        ("attainment=0.02", "attainment", 0.02, False),
        ("idle_p99_s=100ms", "idle_p99_s", 0.1, False),
        ("idle_p99_s=2", "idle_p99_s", 2.0, False),
        ("smooth_goodput_tok_s=5%", "smooth_goodput_tok_s", 0.05, True),
    ],
)
def test_thresholds_are_read(text: str, figure: str, by: float, relative: bool) -> None:
    found = gate.thresholds([text])
    assert found[figure] == gate.Threshold(figure, by, relative)
    assert {name: one for name, one in found.items() if name != figure} == {
        name: one for name, one in gate.thresholds(()).items() if name != figure
    }


def test_a_threshold_can_be_left_out() -> None:
    assert "attainment" not in gate.thresholds(["attainment=off"])


@pytest.mark.parametrize(
    "text",
    ["attainment", "nothing=1", "requests=1", "attainment=x", "attainment=-1", "attainment=nan", "goodput_tok_s=1s"],
)
def test_thresholds_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(gate.ThresholdError, match=text.split("=", maxsplit=1)[0]):
        gate.thresholds([text])


def test_the_frame_has_the_documented_columns() -> None:
    found = compare_tables(waits(30, 1.0, 1), waits(30, 1.0, 2), CLASSES, drawing=QUICK)
    frame = found.frame

    assert list(frame.columns) == list(compare.COLUMNS)
    assert list(frame["figure"]) == [figure.name for figure in FIGURES]
    assert frame["difference_low"].isna().any()
    assert found.summary()["figures"] == found.rows


def test_every_gated_default_has_a_direction() -> None:
    assert set(gate.thresholds(())) <= set(gate.GATED)
    assert not any(one.kind == "rate" for one in FIGURES if one.name in gate.thresholds(()))
    assert replace(gate.thresholds(())["attainment"], by=1.0).allowed(0.5) == 1.0


def test_recordings_that_do_not_say_when_requests_were_sent_have_no_rates_to_compare(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("request,t_seconds\na,0.2\na,0.25\nb,0.1\n")
    one = otel_llm.audit.load(path)
    found = compare.compare(one, one, drawing=Drawing(resamples=100))

    rates = [change for change in found.changes if change.figure.endswith(("_tok_s", "_req_s"))]
    assert {(change.old, change.new, change.verdict) for change in rates} == {(None, None, "cannot say")}
    assert of(found, "attainment").new == 1.0
