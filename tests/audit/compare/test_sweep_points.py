"""A sweep gives what an audit with that alpha and reading speed gives, and finds the peak that was built in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.recordings import bursts, vector_classes, vector_messages, write_format
from support.vectors import FOLDER

import otel_llm.audit
from otel_llm.audit.compare import sweep
from otel_llm.audit.compare.bootstrap import Drawing
from otel_llm.audit.report import sweep_page
from otel_llm.cli.option_types import NumbersError, numbers
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import SloClass, SloClasses

QUICK = Drawing(resamples=200)
S = 10**9


def level(path: Path, load: int, *idle_s: float, count: int = 60) -> Path:
    """A recording of `load` requests a second, of 20 tokens each: all come `idle_s`, in turn, after they are due."""
    late_ns = [round(idle_s[number % len(idle_s)] * S) for number in range(1, count + 1)]
    path.mkdir()
    return write_format(path, "journal.otlp", bursts(late_ns, S // load))


@pytest.fixture
def levels(tmp_path: Path) -> list[tuple[int, Path]]:
    """Loads at which readers wait longer and longer: throughput never flattens, so that alpha alone makes the peak."""
    idle = {1: 0.0, 2: 0.5, 4: 3.0, 8: 9.0}
    return [(load, level(tmp_path / str(load), load, wait)) for load, wait in idle.items()]


def swept(levels: list[tuple[int, Path]], alphas: list[float], speeds: list[float | None]) -> sweep.Sweep:
    classes = load_slo()
    judged = [
        one
        for load, path in levels
        for one in sweep.judge_recording(str(path), otel_llm.audit.load_streams(path), classes, speeds, float(load))
    ]
    return sweep.sweep(judged, alphas, QUICK)


@pytest.mark.parametrize("speed", [None, 3.0, 12.5])
def test_a_point_is_the_audit_with_that_alpha_and_speed(tmp_path: Path, speed: float | None) -> None:
    vectors = write_format(tmp_path, "journal.otlp", vector_messages())
    for path, classes in ((FOLDER / "rows.jsonl", load_slo()), (vectors, vector_classes())):
        found = sweep.judge_recording("r", otel_llm.audit.load_streams(path), classes, [speed])
        points = sweep.sweep(found, [0.0, 2.5, 7.0], QUICK).points
        for point in points:
            wanted = otel_llm.audit.load(path, slo=with_alpha(sweep.at_speed(classes, speed), point["alpha"]))
            rows = [row for row in wanted.rows if row["measured_at"] == point["measured_at"]]
            figures = [places[point["measured_at"]] for places in wanted.summary()["classes"].values()]
            span = wanted.summary()["span_s"]
            for name in ("smooth_goodput_tok_s", "throughput_tok_s"):
                known = [one[name] for one in figures if one[name] is not None]
                assert point[name] == pytest.approx(sum(known))
            assert point["load_req_s"] == pytest.approx(len(rows) / span)
            met = [row["met"] for row in rows if row["met"] is not None]
            assert point["attainment"] == pytest.approx(sum(map(bool, met)) / len(met))
            assert point["requests"] == len(rows)


def with_alpha(classes: SloClasses, alpha: float) -> SloClasses:
    def changed(slo: SloClass) -> SloClass:
        import dataclasses

        return dataclasses.replace(slo, benefit=dataclasses.replace(slo.benefit, alpha=alpha))

    return SloClasses(tuple(changed(slo) for slo in classes.classes), classes.default)


def test_the_best_load_falls_as_alpha_grows(levels: list[tuple[int, Path]]) -> None:
    found = swept(levels, [0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 30.0], [None])
    best = [row["load_req_s"] for row in found.optima]
    # A request is worth 20 - alpha idle, a second so many of them: 20 | 2 (20 - a / 2) | 4 (20 - 3 a) | 8 (20 - 9 a).
    wanted = [max((1, 2, 4, 8), key=lambda load: worth(load, alpha)) for alpha in (0, 1, 2, 3, 5, 8, 30)]

    assert best == wanted
    assert best == sorted(best, reverse=True)
    assert set(best) >= {1, 2, 8}
    assert [row["at_edge"] for row in found.optima] == [load in (1, 8) for load in best]
    assert all(row["best_share"] == 1.0 for row in found.optima)  # all requests of a load are alike


def worth(load: int, alpha: float) -> float:
    idle, count = {1: 0.0, 2: 0.5, 4: 3.0, 8: 9.0}[load], 60
    span = (count - 1) / load + 0.2 + idle
    return count * (20 - alpha * idle) / span


def test_a_slower_reader_waits_less(levels: list[tuple[int, Path]]) -> None:
    found = swept(levels, [2.5], [2.0, 5.0, 20.0])
    at_four = [row["idle_p50_s"] for row in found.points if row["load_req_s"] == 4]

    assert at_four == sorted(at_four)
    assert at_four[1] == pytest.approx(3.0)
    assert at_four[0] == pytest.approx(3.0 - 0.3)  # the first token is due after 0.5 s, not 0.2 s
    assert len(found.points) == 12
    assert len(found.optima) == 3


def test_one_recording_has_no_best_load_and_a_load_of_its_own(levels: list[tuple[int, Path]]) -> None:
    classes = load_slo()
    (one,) = sweep.judge_recording("r", otel_llm.audit.load_streams(levels[1][1]), classes, [None])
    found = sweep.sweep([one], [1.0], QUICK)

    assert found.optima == []
    assert found.points[0]["load_req_s"] == pytest.approx(60 / (29.5 + 0.7))


def test_one_load_twice_is_refused(levels: list[tuple[int, Path]]) -> None:
    with pytest.raises(sweep.SweepError, match="two recordings at 1 requests/s"):
        swept([levels[0], (1, levels[1][1])], [1.0], [None])


def test_few_requests_have_no_interval(tmp_path: Path) -> None:
    paths = [(load, level(tmp_path / str(load), load, 0.5, count=10)) for load in (1, 2)]
    found = swept(paths, [1.0], [None])

    assert {row["smooth_goodput_low"] for row in found.points} == {None}
    assert found.optima[0]["best_share"] is None
    assert found.optima[0]["load_req_s"] == 2


def test_a_load_of_few_requests_takes_no_part_in_the_resampling(levels: list[tuple[int, Path]], tmp_path: Path) -> None:
    # Of ten requests three wait: were they resampled, this load would be the best in every seventh resample.
    few = (10, level(tmp_path / "10", 10, *[4.0] * 3, *[0.0] * 7, count=10))
    (best,) = swept([*levels, few], [5.0], [None]).optima

    assert (best["load_req_s"], best["load_low"], best["load_high"], best["best_share"]) == (2, 2, 2, 1.0)


def test_a_best_load_of_few_requests_is_not_sure(levels: list[tuple[int, Path]], tmp_path: Path) -> None:
    few = (16, level(tmp_path / "16", 16, 0.0, count=10))
    (best,) = swept([*levels, few], [5.0], [None]).optima

    assert (best["load_req_s"], best["at_edge"]) == (16, True)
    assert (best["load_low"], best["best_share"]) == (None, None)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2.5", [2.5]),
        ("10,0,2.5,10", [0.0, 2.5, 10.0]),
        ("0..3", [0.0, 1.0, 2.0, 3.0]),
        ("0..1:0.1", [round(at / 10, 1) for at in range(11)]),
        ("1..2,5", [1.0, 2.0, 5.0]),
    ],
)
def test_numbers_are_read(text: str, wanted: list[float]) -> None:
    assert numbers(text, "--alpha") == wanted


@pytest.mark.parametrize(
    "text", ["", "x", "1..", "3..1", "0..1:0", "-1", "0..1e9", "nan", "inf", "1/0", "1e999999999", "0..1e999999999"]
)
def test_numbers_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(NumbersError, match="--alpha"):
        numbers(text, "--alpha")


def test_the_page_draws_loads_alphas_and_best_loads(levels: list[tuple[int, Path]]) -> None:
    found = swept(levels, [float(alpha) for alpha in range(11)], [None, 8.0])
    html = sweep_page.render(found)
    data = json.loads(html.split("<script type='application/json' id='figures'>")[1].split("</script>")[0])

    assert list(data) == ["points-0", "points-1", "optima-2"]
    names = [trace["name"] for trace in data["points-0"]["data"]]
    assert names[0] == "throughput"
    assert len(names) == 1 + sweep_page.MOST_LINES
    assert (names[1], names[-1]) == ("alpha 0", "alpha 10")
    assert data["points-0"]["data"][1]["x"] == [1.0, 2.0, 4.0, 8.0]
    assert [trace["name"] for trace in data["optima-2"]["data"]] == [
        "each class's own reading speed",
        "reading 8 tokens/s",
    ]
    assert "src=" not in html.split("<script>")[0]


def test_the_page_of_one_recording_draws_alpha(levels: list[tuple[int, Path]]) -> None:
    html = sweep_page.render(swept(levels[:1], [0.0, 1.0], [None]))
    assert "Alpha against smooth goodput" in html
    assert "Load against" not in html
