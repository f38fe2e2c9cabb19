"""Scenario files: the contract's sample is read, every fault is named with its line and a remedy."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from support.scheduling.scenarios import SCENARIO, scenario

from otel_llm.config.yaml_file import ConfigError
from otel_llm.scheduling.polyserve.settings import PolyServeSettings
from otel_llm.scheduling.scenario.scenario import Objective, Scenario
from otel_llm.scheduling.scenario.sweep import load_runs
from otel_llm.scheduling.simulator.engine import Fleet, Transfer
from otel_llm.scheduling.workload.arrivals import ConstantArrivals, GammaArrivals, PoissonArrivals, TraceArrivals
from otel_llm.scheduling.workload.lengths import FixedLength, PercentileLengths, TraceLengths, UniformLengths
from otel_llm.scheduling.workload.tiers import Tier

PLACED = ["random", "minimal", "chunk", "least_load", "lmetric", "round_robin", "power_of_two"]
SAMPLE = f"""\
version: 1
profile: h200-llama-3.1-8b
fleet: {{instances: 20, mode: colocated}}
workload:
  requests: 20000
  warmup: 60s
  arrivals: {{poisson: 40}}
  lengths: {{input: {{uniform: [1, 8191]}}, output: {{uniform: [1, 2047]}}}}
  feasible: true
  tiers:
  - {{name: t20, tpot: 20ms, ttft: [300ms, 500ms, 1s], share: 0.1}}
  - {{name: t30, tpot: 30ms, ttft: [300ms, 500ms, 1s], share: 0.9}}
policy: {{placement: least_load, order: fcfs}}
sweep: {{workload.arrivals.poisson: [10, 20, 40], policy.placement: [{", ".join(PLACED)}]}}
objective: {{attainment: 0.9, every_tier: false}}
"""
MS = 10**6


def one(folder: Path, text: str, *settings: str) -> Scenario:
    (run,) = load_runs(scenario(folder, text), settings)
    return run.scenario


def test_the_sample_is_read(tmp_path: Path) -> None:
    runs = load_runs(scenario(tmp_path, SAMPLE))
    assert [run.settings for run in runs] == [
        {"workload.arrivals.poisson": load, "policy.placement": name} for load in (10, 20, 40) for name in PLACED
    ]
    last = runs[-1].scenario
    assert last.profile.name == "h200-llama-3.1-8b"
    assert last.fleet == Fleet(20)
    assert (last.policy.placement, last.policy.order) == ("power_of_two", "fcfs")
    assert last.objective == Objective.model_validate({"attainment": 0.9})
    assert last.workload.arrivals == PoissonArrivals(Fraction(40))
    assert (last.workload.input, last.workload.output) == (UniformLengths(1, 8191), UniformLengths(1, 2047))
    assert (last.workload.requests, last.workload.warmup_ns, last.workload.feasible) == (20000, 60_000 * MS, True)
    assert last.workload.tiers[0] == Tier("t20", 20 * MS, (300 * MS, 500 * MS, 1000 * MS), Fraction(1, 10))


def test_a_disaggregated_fleet_is_read(tmp_path: Path) -> None:
    fleet = "{instances: 5, mode: disaggregated, prefill: 2, transfer: {latency: 1ms, per_token: 0.76ns}}"
    found = one(tmp_path, SCENARIO.replace("{instances: 2}", fleet))
    assert found.fleet == Fleet(5, 2, Transfer(MS, Fraction("0.76")))
    assert not found.is_split
    assert one(tmp_path, SCENARIO.replace("{instances: 2}", fleet.replace("prefill: 2", "prefill: auto"))).is_split


def test_a_policy_is_read(tmp_path: Path) -> None:
    policy = "{order: anneal, budget: 64, output_lengths: {error: 0.05}, annealing: {window: 8, max_batch: 2}}"
    found = one(tmp_path, SCENARIO.replace("{placement: least_load, order: fcfs}", policy)).policy
    assert (found.placement, found.order, found.budget) == ("least_load", "anneal", 64)
    assert found.output_lengths is not None
    assert found.output_lengths.error == 0.05
    assert (found.annealing.window, found.annealing.max_batch) == (8, 2)
    found = one(tmp_path, SCENARIO).policy
    assert (found.budget, found.output_lengths, found.annealing.window, found.annealing.max_batch) == (
        None,
        None,
        16,
        None,
    )


@pytest.mark.parametrize(
    ("text", "arrivals"),
    [
        ("{constant: 2.5}", ConstantArrivals(Fraction(5, 2))),
        ("{gamma: 40, cv: 3}", GammaArrivals(Fraction(40), 3.0)),
    ],
)
def test_arrivals_are_read(tmp_path: Path, text: str, arrivals: object) -> None:
    assert one(tmp_path, SCENARIO.replace("{poisson: 1000000}", text)).workload.arrivals == arrivals


def test_lengths_and_traces_are_read_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,10,1\n2023-11-16 18:15:47,20,2\n"
    )
    found = one(
        tmp_path,
        SCENARIO.replace("{poisson: 1000000}", "{trace: t.csv, speed: 2.0}")
        .replace("{input: {uniform: [1, 50]}, output: {uniform: [1, 20]}}", "{trace: t.csv}")
        .replace("  requests: 50\n", ""),
    )
    work = found.workload
    assert isinstance(work.arrivals, TraceArrivals)
    assert work.arrivals.speed == 2
    assert isinstance(work.input, TraceLengths)
    assert isinstance(work.output, TraceLengths)
    assert (work.requests, work.input.column.tolist(), work.output.column.tolist()) == (None, [10, 20], [1, 2])
    sides = "{input: {percentiles: {25: 10, '50': 20, 99.5: 90}}, output: {fixed: 7}}"
    found = one(tmp_path, SCENARIO.replace("{input: {uniform: [1, 50]}, output: {uniform: [1, 20]}}", sides))
    assert found.workload.input == PercentileLengths(((25.0, 10), (50.0, 20), (99.5, 90)))
    assert found.workload.output == FixedLength(7)


def test_the_switches_of_polyserve_are_read(tmp_path: Path) -> None:
    assert one(tmp_path, SCENARIO).policy.polyserve() is None
    assert one(tmp_path, SCENARIO, "policy.placement=polyserve").policy.polyserve() == PolyServeSettings()
    switches = "load_gradient: false, lazy_promotion: false, dynamic_chunking: false, continuous_prediction: false"
    rest = "slack_share: 0.5, kv_margin: 0.2, late_share: 1, autoscale: unlimited"
    found = one(tmp_path, SCENARIO.replace("least_load", f"polyserve, {switches}, {rest}"))
    shares = (Fraction(1, 2), Fraction(1, 5), Fraction(1))
    assert found.policy.polyserve() == PolyServeSettings(False, False, False, False, "slack", *shares, True)
    found = one(tmp_path, SCENARIO.replace("least_load", "polyserve, chunking: tpot"), "workload.expected_output=99")
    assert found.policy.polyserve() == PolyServeSettings(chunking="tpot")
    assert found.workload.expected_output == 99


def test_polyserve_needs_tiers(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"policy.placement: polyserve without tiers .write workload.tiers"
    ) as refused:
        one(tmp_path, SCENARIO.replace("least_load", "polyserve"), "workload.tiers=[]")
    assert refused.value.line == 11


def test_settings_come_before_the_file_and_its_sweep(tmp_path: Path) -> None:
    runs = load_runs(
        scenario(tmp_path, SAMPLE),
        ["workload.arrivals.poisson=15", "policy.placement=random", "workload.lengths.output={fixed: 7}"],
    )
    assert [run.settings for run in runs] == [{}]
    assert runs[0].scenario.workload.arrivals == PoissonArrivals(Fraction(15))
    assert runs[0].scenario.workload.output == FixedLength(7)


FAULTS = [
    ("workload:", "worklod:", 4, "worklod: unknown key (did you mean workload?)"),
    ("hand.yaml", "nothere.yaml", 2, "nothere.yaml: No such file"),
    (
        "hand.yaml",
        "h200-lama-3.1-8b",
        2,
        "profile: h200-lama-3.1-8b: no profile that ships has this name (did you mean",
    ),
    ("hand.yaml", ".", 2, "Is a directory (name a file that can be read)"),
    ("{poisson: 1000000}", "{trace: nothere.csv}", 6, "nothere.csv: No such file"),
    ("{uniform: [1, 20]}", "{trace: nothere.csv}", 7, "workload.lengths.output.trace: "),
    ("instances: 2", "instances: 0", 3, "fleet.instances: 0 is not a whole number from 1 to 10000"),
    ("instances: 2", "instances: 2, prefill: 1", 3, "fleet.prefill: a colocated fleet has none (write `mode: dis"),
    ("instances: 2", "instances: 2, mode: disaggregated", 3, "fleet: no prefill instances (write `prefill: N`"),
    (
        "instances: 2",
        "instances: 2, mode: disaggregated, prefill: 2",
        3,
        "fleet.prefill: 2 of 2 leave none to decode (write less)",
    ),
    (
        "instances: 2",
        "instances: 1, mode: disaggregated, prefill: auto",
        3,
        "fleet.prefill: one instance cannot be split",
    ),
    ("instances: 2", "instances: 1, prefill: auto", 3, "fleet.prefill: a colocated fleet has none"),
    (
        "instances: 2",
        "instances: 2, mode: disaggregated, prefill: most",
        3,
        "fleet.prefill: 'most' is no number of instances (write a whole number, or auto)",
    ),
    ("order: fcfs", "budget: 0", 11, "policy.budget: 0 is not a whole number from 1"),
    ("order: fcfs", "output_lengths: known", 11, "policy.output_lengths: 'known' is no way to know output lengths"),
    ("order: fcfs", "output_lengths: {error: -0.1}", 11, "policy.output_lengths.error: -0.1 is no share of a length"),
    ("order: fcfs", "output_lengths: {eror: 0.1}", 11, "policy.output_lengths.eror: unknown key (did you mean error?"),
    ("order: fcfs", "annealing: {window: 1}", 11, "policy.annealing.window: 1 is not a whole number from 2 to 256"),
    ("order: fcfs", "annealing: {max_batch: 0}", 11, "policy.annealing.max_batch: 0 is not a whole number from 1"),
    ("order: fcfs", "annealing: {moves: 9}", 11, "policy.annealing.moves: unknown key"),
    ("  requests: 50\n", "", 5, "workload: requests: missing (write `requests: 20000`"),
    ("requests: 50", "requests: 0", 5, "workload.requests: 0 is not a whole number from 1"),
    ("poisson: 1000000", "poisson: 0", 6, "workload.arrivals.poisson: 0 is no number above 0"),
    ("poisson: 1000000", "poisson: -3", 6, "workload.arrivals.poisson: -3 is no number above 0"),
    ("poisson: 1000000", "constant: 0", 6, "workload.arrivals.constant: 0 is no number above 0"),
    ("poisson: 1000000", "gamma: 0, cv: 1", 6, "workload.arrivals.gamma: 0 is no number above 0"),
    ("poisson: 1000000", "gamma: 4, cv: 0", 6, "workload.arrivals.cv: 0 is no number above 0"),
    ("poisson: 1000000", "trace: two.csv, speed: 0", 6, "workload.arrivals.speed: 0 is no number above 0"),
    ("poisson: 1000000", "poisson: .nan", 6, "not a finite number (write a number)"),
    ("requests: 50", "requests: 50\n  feasible: maybe", 6, "workload.feasible: neither true nor false (write true or"),
    ("poisson: 1000000", "poisson: 4, constant: 4", 6, "workload.arrivals.constant: poisson and constant together"),
    ("poisson: 1000000", "poisson: null", 6, "workload.arrivals.poisson: no value (write {poisson: 40}"),
    ("poisson: 1000000", "gamma: 4", 6, "workload.arrivals: gamma without cv (write {poisson: 40}"),
    ("poisson: 1000000", "poisson: 4, cv: 2", 6, "workload.arrivals.cv: poisson has no cv"),
    ("{poisson: 1000000}", "{}", 6, "workload.arrivals: nothing to draw from"),
    ("{uniform: [1, 20]}", "{uniform: [20, 1]}", 7, "workload.lengths.output.uniform: 20 is above 1"),
    ("{uniform: [1, 20]}", "{percentiles: {50: 9, 25: 10}}", 7, "output.percentiles.25: percentiles and lengths do"),
    ("{uniform: [1, 20]}", "{percentiles: {50: 9, 75: 8}}", 7, "output.percentiles.75: percentiles and lengths do"),
    ("{uniform: [1, 20]}", "{percentiles: {101: 9}}", 7, "percentiles.101: '101' is no percentile"),
    (", output: {uniform: [1, 20]}", "", 7, "workload.lengths: no output (write {uniform: [1, 8191]}"),
    (
        "{uniform: [1, 20]}",
        "{uniform: [1000, 2000]}",
        7,
        "workload.lengths: a request has 1001 tokens or more, and the KV",
    ),
    ("tpot: 200ns", "tpot: 0s", 9, "workload.tiers[0].tpot: must be longer than zero"),
    ("[500ns, 1us]", "[500ns, 0]", 9, "workload.tiers[0].ttft[1]: must be longer than zero"),
    ("[500ns, 1us]", "[500ns, 500ns]", 9, "workload.tiers: two classes 'fast-500ns'"),
    ("[500ns, 1us]", "[]", 9, "workload.tiers[0].ttft: empty"),
    ("share: 0.5}\npolicy", "share: 0.4}\npolicy", 9, "workload.tiers: the shares add up to 0.9 (they must"),
    ("share: 0.5}\npolicy", "share: 1.5}\npolicy", 10, "workload.tiers[1].share: 1.5 is no share"),
    ("share: 0.5}\npolicy", "share: 0}\npolicy", 10, "workload.tiers[1].share: 0 is no share (write a number above 0"),
    ("name: slow", "name: fast-1us", 9, "workload.tiers: two classes 'fast-1us'"),
    ("name: slow", "name: fast", 9, "workload.tiers: two tiers 'fast'"),
    (
        "least_load",
        "least_lod",
        11,
        "policy.placement: no placement 'least_lod' in the simulator (did you mean least_l",
    ),
    ("fcfs", "lifo", 11, "policy.order: 'lifo' is not allowed here (write 'fcfs', 'edf', 'sjf' or 'anneal')"),
    (
        "placement: least_load, order: fcfs",
        "lazy_promotion: false",
        11,
        "policy.lazy_promotion: least_load has no lazy_pr",
    ),
    ("least_load, order: fcfs", "polyserve, order: edf", 11, "policy.order: polyserve predicts with its own order"),
    ("least_load", "polyserve, chunking: none", 11, "policy.chunking: 'none' is not allowed here (write 'slack' or"),
    ("least_load", "polyserve, slack_share: 0", 11, "policy.slack_share: 0 is no share"),
    ("least_load", "polyserve, kv_margin: 1", 11, "policy.kv_margin: 1 is no margin (write a number from 0 to"),
    ("least_load", "polyserve, kv_margin: .nan", 11, "not a finite number"),
    ("least_load", "polyserve, late_share: 2", 11, "policy.late_share: 2 is no share"),
    ("least_load", "polyserve, chunking: tpot, slack_share: 0.5", 11, "policy.slack_share: slack_share without slack"),
    ("least_load", "polyserve, autoscale: 3", 11, "policy.autoscale: 3 is not allowed here (write 'fixed' or"),
    (
        "requests: 50",
        "requests: 50\n  expected_output: 0",
        6,
        "workload.expected_output: 0 is not a whole number from 1",
    ),
    ("policy:", "sweep: {policy: {}}\npolicy:", 11, "sweep.policy: not a list of values"),
    (
        "policy:",
        "sweep: {polcy.placement: [random]}\npolicy:",
        11,
        "polcy.placement: unknown key (did you mean policy?",
    ),
    ("policy:", "sweep: {policy.placment: [random]}\npolicy:", 11, "policy.placment: unknown key (did you mean placem"),
    ("policy:", "sweep: {policy.placement: [random, x]}\npolicy:", 11, "policy.placement: no placement 'x'"),
    ("policy:", "sweep: {policy.placement: [random, random]}\npolicy:", 11, "'random' stands here twice"),
    ("policy:", "sweep: {profile.x: [1]}\npolicy:", 11, "profile.x: profile is no mapping"),
    ("policy:", "sweep: [1]\npolicy:", 11, "sweep: not a mapping"),
    ("{poisson: 1000000}", "{trace: empty.csv}", 1, "empty.csv:1: no rows"),
    ("{poisson: 1000000}", "{trace: two.csv}", 5, "workload.requests: the trace has 2 rows (write at most 2)"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), FAULTS)
def test_a_fault_is_named_with_its_line_and_a_remedy(
    tmp_path: Path, old: str, new: str, line: int | None, words: str
) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    (tmp_path / "empty.csv").write_text(head)
    (tmp_path / "two.csv").write_text(head + "2023-11-16 18:15:46,10,1\n" * 2)
    assert SCENARIO.count(old) == 1
    with pytest.raises(ConfigError) as refused:
        load_runs(scenario(tmp_path, SCENARIO.replace(old, new)))
    assert words in str(refused.value)
    assert refused.value.line == line
    assert refused.value.advice
    assert str(tmp_path) in str(refused.value)


def test_a_trace_is_read_again_by_the_next_command(tmp_path: Path) -> None:
    text = SCENARIO.replace("{poisson: 1000000}", "{trace: t.csv}").replace("  requests: 50\n", "")
    for rows in (1, 3):
        (tmp_path / "t.csv").write_text(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2023-11-16 18:15:46,10,1\n" * rows
        )
        arrivals = one(tmp_path, text).workload.arrivals
        assert isinstance(arrivals, TraceArrivals)
        assert len(arrivals.trace) == rows


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("workload.requests", "--set: workload.requests: no value (write KEY=VALUE, as workload.requests=2000)"),
        ("workload.requests=x", "--set: workload.requests: 'x' is not a whole number"),
        ("worklod.requests=1", "--set: worklod.requests: unknown key (did you mean workload?)"),
        ("workload.requets=1", "--set: workload.requets: unknown key (did you mean requests?)"),
        ("workload.requests={", "--set: workload.requests: not YAML"),
        ("profile.x=1", "--set: profile.x: profile is no mapping"),
        ("workload.tiers.x=1", "--set: workload.tiers.x: tiers is no mapping"),
        ("sweep=1", "--set: sweep: unknown key"),
        ("workload..x=1", "--set: workload..x: unknown key"),
        ("workload.arrivals.constant=4", "--set: workload.arrivals.constant: poisson and constant together"),
    ],
)
def test_a_faulty_setting_is_named(tmp_path: Path, setting: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_runs(scenario(tmp_path), [setting])
    assert words in str(refused.value)


def test_a_sweep_is_not_endless(tmp_path: Path) -> None:
    levels = list(range(1, 102))
    sweep = f"sweep: {{workload.requests: {levels}, fleet.instances: {levels}}}\n"
    with pytest.raises(ConfigError, match=r"10201 runs .a sweep has at most 10000"):
        load_runs(scenario(tmp_path, SCENARIO + sweep))
