"""Figures 5, 6, 9 and 11 of Wang et al. follow from the committed measurements, and say what the paper says."""

from __future__ import annotations

import csv
import json
import random
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import otel_llm.audit

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "load-sweep"
sys.path.insert(0, str(FOLDER))  # a folder of scripts, which find each other as they do when they are run

import csv_rows  # noqa: E402
import drawing  # noqa: E402
import levels  # noqa: E402
import run as sweeping  # noqa: E402
import step_model  # noqa: E402
import step_times  # noqa: E402
from batching import serve  # noqa: E402
from levels import Level  # noqa: E402
from load_requests import Request, poisson  # noqa: E402
from readme_tables import tables  # noqa: E402
from step_model import Point, Sample, StepModel  # noqa: E402
from step_times import ROUND, WINDOW, Stream  # noqa: E402

MS = 1_000_000
S = 1_000_000_000
WORKED = StepModel(10.0, 1.0, 2.0, 0.01)
"""A step of 10 ms, 1 ms a reply, 2 ms a token taken in, 10 us a token in the cache."""


def committed(name: str) -> Any:
    return json.loads((FOLDER / name).read_text("utf-8"))


def committed_model() -> StepModel:
    return StepModel(**committed("fit.json")["model"])


@pytest.fixture(scope="module")
def sweeps() -> dict[str, list[Level]]:
    """The committed levels by their engine."""
    found: dict[str, list[Level]] = {}
    for one in csv_rows.load(FOLDER / "levels.csv", Level):
        found.setdefault(one.engine, []).append(one)
    return found


# The measurement and the fit.


def test_the_table_follows_from_the_samples_and_the_fit_from_the_table() -> None:
    table = step_model.points(csv_rows.load(FOLDER / "samples.csv", Sample))
    assert table == csv_rows.load(FOLDER / "steps.csv", Point)
    fitted = step_model.fit(table).words()
    wanted = committed("fit.json")
    assert fitted.pop("model") == pytest.approx(wanted.pop("model"), abs=2e-6)
    assert fitted == pytest.approx(wanted, abs=2e-6)


def test_the_fit_is_the_least_squares_one_and_explains_the_steps() -> None:
    table = csv_rows.load(FOLDER / "steps.csv", Point)
    model = committed_model()
    taken = [(1, one.decodes, one.prefill, one.context) for one in table]
    off = [1 - model.ns(*row[1:]) / 1e6 / one.quiet_ms for row, one in zip(taken, table, strict=True)]
    # What is left over is at right angles to everything that was fitted: no other model of this format fits better.
    for column in range(4):
        weighed = [row[column] / one.quiet_ms for row, one in zip(taken, table, strict=True)]
        size = sum(one * one for one in weighed) ** 0.5 * sum(one * one for one in off) ** 0.5
        assert abs(sum(left * one for left, one in zip(off, weighed, strict=True))) < 1e-3 * size
    mean_ms = sum(one.quiet_ms for one in table) / len(table)
    left = sum((one.quiet_ms * share) ** 2 for one, share in zip(table, off, strict=True))
    r_squared = 1 - left / sum((one.quiet_ms - mean_ms) ** 2 for one in table)
    assert committed("fit.json")["r_squared"] == pytest.approx(r_squared, abs=1e-4)
    assert r_squared > 0.9
    assert min(model.base_ms, model.decode_ms, model.prefill_ms, model.context_ms) > 0
    # More replies at once, longer steps, and less time for each: at eight sizes of batch and more.
    alone = [one for one in table if not one.prefill and one.prompt == 16]
    assert [one.decodes for one in alone] == [1, 2, 4, 8, 16, 24, 32, 48, 64]
    assert alone[-1].quiet_ms > 3 * alone[0].quiet_ms
    assert alone[-1].quiet_ms / 64 < alone[0].quiet_ms / 4


def a_round(model: StepModel) -> list[Stream]:
    """A round as an engine would answer it whose steps take what the model says."""
    found: list[Stream] = []
    now_ns = S
    for phase in ROUND:
        background = [
            Stream(now_ns + number, phase.prompt, np.zeros(phase.output, np.int64)) for number in range(phase.running)
        ]
        new: list[Stream] = []
        for step in range(phase.output):
            # A newcomer is taken in with every seventh step, from the third on.
            number, begins = divmod(step - 3, 7)
            taken = phase.newcomers[number] if begins == 0 and 0 <= number < len(phase.newcomers) else 0
            if taken:
                new.append(Stream(now_ns + 1, taken, np.zeros(2, np.int64)))
            now_ns += model.ns(phase.running, taken, phase.running * (phase.prompt + step))
            for one in background:
                one.times_ns[step] = now_ns
            if taken:
                new[-1].times_ns[:] = now_ns, now_ns + 1
        assert len(new) == len(phase.newcomers)
        found += background + new
        now_ns += S
    return found


def test_the_times_of_steps_come_out_of_a_recording_as_they_went_in() -> None:
    found = step_times.samples(a_round(WORKED), 7)
    assert {one.round for one in found} == {7}
    kinds = {(one.decodes, one.prefill) for one in found}
    assert {(running, prompt) for running in (4, 16, 32) for prompt in (32, 64, 128, 256, 400)} < kinds
    for one in found:
        assert one.step_ms == pytest.approx(WORKED.ns(one.decodes, one.prefill, one.context) / MS, rel=0.01)
    fitted = step_model.fit(step_model.points(found))
    assert fitted.model.base_ms == pytest.approx(10, rel=0.02)
    assert fitted.model.decode_ms == pytest.approx(1, rel=0.02)
    assert fitted.model.prefill_ms == pytest.approx(2, rel=0.02)
    assert fitted.model.context_ms == pytest.approx(0.01, rel=0.05)
    assert fitted.r_squared > 0.9999
    assert sum(one.prefill == 0 and one.decodes == 1 for one in found) == 24 - WINDOW


def test_what_is_no_round_is_refused() -> None:
    streams = a_round(WORKED)
    with pytest.raises(ValueError, match="no round"):
        step_times.samples(streams[:-1], 1)
    with pytest.raises(ValueError, match="no round"):
        step_times.samples([*streams[:5], *streams[6:], streams[5]], 1)


# The engine.


def test_a_reply_alone_and_two_that_meet_are_served_as_worked_by_hand() -> None:
    # 100 tokens taken in: 10 + 200 ms. Then 10 + 1 + 0.01 x 101, and 102, in the cache.
    assert serve([Request(5 * S, 100, 3)], WORKED, 4, 512) == [[5_210 * MS, 5_222_010_000, 5_234_030_000]]
    # The second comes in the first's second step: its prompt goes into the third step, beside the first's token.
    both = serve([Request(0, 100, 4), Request(215 * MS, 50, 2)], WORKED, 4, 512)
    third_ns = 222_010_000 + 10 * MS + MS + 100 * MS + 1_020_000
    assert both == [
        [210 * MS, 222_010_000, third_ns, third_ns + 12 * MS + 1_540_000],
        [third_ns, third_ns + 12 * MS + 1_540_000],
    ]
    # Prompts first: the second's prompt has a step of its own, in which the first stands still.
    apart = serve([Request(0, 100, 4), Request(215 * MS, 50, 2)], WORKED, 4, 512, "prompts-first")
    assert apart[1][0] == 222_010_000 + 110 * MS
    assert apart[0][2] == apart[1][0] + 12 * MS + 1_020_000 + 510_000
    assert apart[0][2] == apart[1][1]


def test_a_prompt_longer_than_what_is_left_of_a_step_takes_two() -> None:
    # 60 tokens a step: 60 of the first prompt, then 40 of it and 20 of the second, then 30 and one reply.
    served = serve([Request(0, 100, 1), Request(0, 50, 1)], WORKED, 4, 60)
    assert served == [[260 * MS], [260 * MS + 70 * MS]]


@pytest.mark.parametrize("policy", ["chunked", "prompts-first"])
def test_everybody_is_served_in_full_in_order_and_never_more_than_can_run(policy: Any) -> None:
    requests = poisson(40.0, 10.0, 3)
    served = serve(requests, WORKED, 8, 512, policy)
    edges = []
    for one, times_ns in zip(requests, served, strict=True):
        assert len(times_ns) == one.output
        assert times_ns[0] >= one.at_ns + WORKED.ns(0, 1, 0)
        assert all(before < after for before, after in pairwise(times_ns))
        edges += [(times_ns[0], 1), (times_ns[-1], -1)]
    firsts = [times_ns[0] for times_ns in served]
    assert firsts == sorted(firsts)
    running = most = 0
    for _, change in sorted(edges):
        running += change
        most = max(most, running)
    assert most == 8


def test_the_arrivals_are_poisson_and_the_lengths_within_bounds() -> None:
    requests = poisson(5.0, 2000.0, 1)
    assert requests == poisson(5.0, 2000.0, 1) != poisson(5.0, 2000.0, 2)
    gaps = [(after.at_ns - before.at_ns) / S for before, after in pairwise(requests)]
    assert len(requests) == pytest.approx(10_000, rel=0.03)
    assert float(np.std(gaps)) == pytest.approx(float(np.mean(gaps)), rel=0.05)
    for values, least, most, median in (
        ([one.prompt for one in requests], 16, 400, 60),
        ([one.output for one in requests], 16, 192, 70),
    ):
        assert (min(values), max(values)) == (least, most)
        assert float(np.median(values)) == pytest.approx(median, rel=0.05)


# The levels.


@pytest.mark.parametrize("policy", ["chunked", "prompts-first"])
def test_the_levels_of_the_model_are_the_committed_ones(sweeps: dict[str, list[Level]], policy: Any) -> None:
    found = sweeping.sweep(committed_model(), policy, seeds=(1,))
    assert found == [one for one in sweeps[policy] if one.seed == 1]
    assert [one.load for one in found] == list(sweeping.LOADS)


def test_the_levels_of_the_real_sweep_follow_from_its_recordings(sweeps: dict[str, list[Level]]) -> None:
    files = sweeping.recordings(FOLDER / "recorded")
    assert len(files) >= 6
    assert [levels.level(levels.kept(file), "vllm", load, 1) for load, file in files.items()] == sweeps["vllm"]
    with (FOLDER / "runs.csv").open(encoding="utf-8") as lines:
        runs = list(csv.DictReader(lines))
    for load, file in files.items():
        # The requests are those of the load; of several runs the one is kept beside which others used least.
        requested = poisson(load, 20.0, 1)
        recorded = levels.kept(file)
        assert sorted(map(len, recorded.column("times_ns").to_pylist())) == sorted(one.output for one in requested)
        assert sorted(recorded.column("input_tokens").to_pylist()) == sorted(one.prompt for one in requested)
        mine = [one for one in runs if float(one["load"]) == load]
        (kept,) = [one for one in mine if one["kept"] == "1"]
        assert float(kept["others"]) == min(float(one["others"]) for one in mine)


def smooth_goodput(streams: pa.RecordBatch, alpha: float) -> float:
    """Equations 5, 9, 10 and 11 as the paper has them, at 5 tokens per second, and nothing else."""
    benefit, ends = 0.0, []
    for commit_ns, times_ns in zip(
        *(streams.column(name).to_pylist() for name in ("commit_ns", "times_ns")), strict=True
    ):
        late_s = [(at_ns - commit_ns) / 1e9 - number / 5 for number, at_ns in enumerate(times_ns, start=1)]
        benefit += len(times_ns) - alpha * max(0.0, *late_s, 0.0)
        ends.append(times_ns[-1])
    begin_ns = min(streams.column("commit_ns").to_pylist())
    return float(benefit / ((max(ends) - begin_ns) / 1e9))


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.5, 50.0])
def test_smooth_goodput_is_what_the_definition_gives(sweeps: dict[str, list[Level]], alpha: float) -> None:
    model = committed_model()
    for load in (1.0, 5.0, 8.0):
        (one,) = [one for one in sweeps["chunked"] if (one.load, one.seed) == (load, 2)]
        assert one.smooth_goodput_at(alpha) == pytest.approx(
            smooth_goodput(sweeping.modelled(model, load, 2), alpha), abs=1e-3
        )
        assert one.smooth_goodput == pytest.approx(one.smooth_goodput_at(2.5), abs=1e-4)
    for load, file in sweeping.recordings(FOLDER / "recorded").items():
        (one,) = [one for one in sweeps["vllm"] if one.load == load]
        # A real client sees the end of its stream after the last token.
        assert one.smooth_goodput_at(alpha) == pytest.approx(
            smooth_goodput(levels.kept(file), alpha), rel=0.01, abs=0.5
        )


@pytest.mark.parametrize("load", [1.0, 3.0])
def test_the_whole_audit_says_the_same_of_a_recording(sweeps: dict[str, list[Level]], load: float) -> None:
    file = sweeping.recordings(FOLDER / "recorded")[load]
    summary = otel_llm.audit.load(file, slo=FOLDER / "slo.yaml").summary()
    (one,) = [one for one in sweeps["vllm"] if one.load == load]
    reported = summary["classes"]["reader"]["client"]
    assert summary["span_s"] == pytest.approx(one.span_s, abs=1e-6)
    assert reported["throughput_tok_s"] == pytest.approx(one.throughput, abs=1e-5)
    assert reported["smooth_goodput_tok_s"] == pytest.approx(one.smooth_goodput, abs=1e-5)
    assert reported["attainment"] == pytest.approx(one.attainment, abs=1e-6)
    assert (reported["requests"], reported["incomplete"]) == (one.requests, 0)


# What the figures say.


def mean(mine: list[Level], load: float, column: str) -> float:
    values = [float(getattr(one, column)) for one in mine if one.load == load]
    return sum(values) / len(values)


@pytest.mark.parametrize("engine", ["chunked", "prompts-first"])
def test_figures_5_and_6_smooth_goodput_peaks_and_falls_where_throughput_flattens(
    sweeps: dict[str, list[Level]], engine: str
) -> None:
    mine = sweeps[engine]
    loads = sorted({one.load for one in mine})
    peak, most = levels.optimum(mine, 2.5)
    assert loads.index(peak) >= 6, "a peak needs levels before it"
    beyond = [load for load in loads if load > peak]
    assert len(beyond) >= 4
    # Up to the peak both grow by the arrivals; beyond it throughput grows no more, and never falls.
    before = [load for load in loads if load <= peak]
    for left, right in pairwise(before):
        assert mean(mine, left, "smooth_goodput") < mean(mine, right, "smooth_goodput")
    for left, right in pairwise(beyond):
        assert mean(mine, right, "throughput") > 0.995 * mean(mine, left, "throughput")
        assert mean(mine, right, "smooth_goodput") < mean(mine, left, "smooth_goodput")
    assert mean(mine, 8.0, "throughput") == pytest.approx(mean(mine, peak, "throughput"), rel=0.08)
    assert mean(mine, 8.0, "smooth_goodput") < 0.2 * most
    # The classical metrics only grow: median TBT and TPOT up to the full batch, TTFT beyond it.
    for column in ("tbt_s", "tpot_s", "ttft_s"):
        assert all(mean(mine, left, column) < mean(mine, right, column) for left, right in pairwise(before))
    assert mean(mine, 8.0, "ttft_s") > 20 * mean(mine, peak, "ttft_s")
    assert mean(mine, 8.0, "tbt_s") < 2 * mean(mine, peak, "tbt_s")


def test_chunked_prefills_carry_a_higher_load(sweeps: dict[str, list[Level]]) -> None:
    assert levels.optimum(sweeps["chunked"], 2.5) > levels.optimum(sweeps["prompts-first"], 2.5)
    for load in sweeping.LOADS:
        chunked, first = (mean(sweeps[engine], load, "smooth_goodput") for engine in ("chunked", "prompts-first"))
        assert chunked > first


def test_the_real_sweep_peaks_and_falls_too(sweeps: dict[str, list[Level]]) -> None:
    mine = sorted(sweeps["vllm"], key=lambda one: one.load)
    peak, most = levels.optimum(mine, 2.5)
    assert mine[0].load < peak < mine[-1].load
    # What else ran on the machine slowed some of these runs: throughput scatters, and what is left of it does not.
    last = mine[-1]
    assert last.throughput > 0.8 * mean(mine, peak, "throughput")
    assert last.smooth_goodput < 0.3 * most
    for one in mine:
        share = one.smooth_goodput / one.throughput
        assert share > 0.95 if one.load <= peak else share < 0.9


def test_figure_11_the_optimum_moves_left_as_alpha_grows(sweeps: dict[str, list[Level]]) -> None:
    for mine in sweeps.values():
        optima = [levels.optimum(mine, alpha)[0] for alpha in (0.0, *drawing.ALPHAS)]
        assert optima == sorted(optima, reverse=True)
        assert optima[-1] < optima[0]
    modelled = [levels.optimum(sweeps["chunked"], alpha)[0] for alpha in drawing.ALPHAS]
    assert len(set(modelled)) >= 4
    # Whatever the levels: with A > B, the optimum at alpha A idles no more than that at alpha B (exchange argument).


def test_figure_9_holding_back_betters_tbt_and_not_idle() -> None:
    for one in committed("figures.json")["held_back"].values():
        before, after = one["before"], one["after"]
        assert one["idle_the_same"] is True
        assert after["mean_idle_s"] == before["mean_idle_s"]
        assert after["tbt_ms"]["p99"] < 0.8 * before["tbt_ms"]["p99"]
        assert after["tbt_ms"]["max"] <= before["tbt_ms"]["max"]
        assert after["gaps_within_200ms"] > before["gaps_within_200ms"]
        assert after["attainment_by_tbt"] > before["attainment_by_tbt"]
        drawn = one["drawn"]
        assert all(held >= made for held, made in zip(drawn["after_ns"], drawn["before_ns"], strict=True))


def test_holding_back_leaves_idle_as_it_was_to_the_nanosecond_for_any_stream() -> None:
    draw = random.Random(9)
    requests, delivered = [], []
    for number in range(300):
        at_ns = number * S
        times_ns, now_ns = [], at_ns
        for _ in range(draw.randint(1, 60)):
            now_ns += draw.choice((0, 1, 20 * MS, 199 * MS, 200 * MS, 201 * MS, draw.randrange(2 * S)))
            times_ns.append(now_ns)
        requests.append(Request(at_ns, 16, len(times_ns)))
        delivered.append(times_ns)
    streams = levels.recorded(requests, delivered)
    held = levels.held_back(streams)
    for made, released in zip(delivered, held.column("times_ns").to_pylist(), strict=True):
        assert released[0] == made[0]
        assert all(late >= at for late, at in zip(released, made, strict=True))
        assert all(after - before >= 200 * MS for before, after in pairwise(released))
    idle = [levels.judged(one).column("idle_s").to_pylist() for one in (streams, held)]
    assert idle[0] == idle[1]
    assert sum(one > 0 for one in idle[0]) > 100


def test_the_figures_follow_from_the_levels_and_the_recordings(sweeps: dict[str, list[Level]]) -> None:
    wanted = committed("figures.json")
    assert sweeping.results(FOLDER, sweeps, committed_model()) == wanted
    figures = sweeping.figures(sweeps, wanted)
    assert len(figures) == len(sweeping.PICTURES) == 4
    for (name, _, height), figure in zip(sweeping.PICTURES, figures, strict=True):
        data = (FOLDER / f"{name}.png").read_bytes()
        assert data.startswith(b"\x89PNG\r\n"), name
        assert int.from_bytes(data[20:24], "big") == height
        json.dumps(figure, allow_nan=False)


def test_the_readme_says_these_numbers_and_names_every_file() -> None:
    readme = (FOLDER / "README.md").read_text("utf-8")
    for name, words in tables(FOLDER).items():
        assert f"<!-- {name} -->\n{words}\n<!-- end -->" in readme, name
    files = {path.name for path in FOLDER.iterdir() if path.is_file()} - {"README.md"}
    assert files | {"recorded/"} == set(re.findall(r"`([\w-]+\.(?:py|csv|json|png|yaml)|recorded/)`", readme))
