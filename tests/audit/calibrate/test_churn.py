"""Alpha from behaviour: known rates come back, the likelihood is the one written down, and too little is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.otlp import IDENTITY, T0_NS, export, stream_spans
from support.recordings import write_format

from otel_llm import audit, semconv
from otel_llm.audit.calibrate import alpha_fit as fit
from otel_llm.audit.calibrate import churn
from otel_llm.audit.calibrate.churn import Readers
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import Benefit, Penalty

Floats = np.ndarray


def simulate(shape: Penalty, beta: float, base: float, count: int, seed: int, wait_s: float = 2.0) -> Readers:
    """Readers who leave by the model: a wait in the middle of their reading, and a clock of their own for each cause.

    Drawn by inverting the cumulative hazards, which the fit never does.
    """
    generator = np.random.default_rng(seed)
    reading, waiting = generator.uniform(5, 20, count), generator.exponential(wait_s, count)
    owed = generator.exponential(1.0, count)  # a wait of l ends in leaving once beta f(l) reaches it
    patience = {"linear": owed / beta, "quadratic": np.sqrt(owed / beta), "exponential": np.log1p(owed / beta)}[shape]
    other = generator.exponential(1 / base, count) if base else np.full(count, math.inf)
    before = reading / 2  # the wait begins in the middle
    by_wait, by_self = before + np.where(patience < waiting, patience, math.inf), other
    whole = reading + waiting
    end = np.minimum(np.minimum(by_wait, by_self), whole)
    idle = np.clip(end - before, 0, waiting)
    left = end < whole
    in_wait = left & (end > before) & (end < before + waiting)
    ids = tuple(f"{at:032x}" for at in range(count))
    return Readers(ids, idle, end, in_wait, left & ~in_wait, 100.0, 0)


@pytest.mark.parametrize(("shape", "beta"), [("linear", 0.2), ("quadratic", 0.05), ("exponential", 0.03)])
def test_known_rates_and_shapes_come_back(shape: Penalty, beta: float) -> None:
    found = churn.calibrate(simulate(shape, beta, 0.02, 20_000, 5))

    assert found.best.penalty == shape
    assert found.indistinguishable == (shape,)
    assert found.shown
    assert found.best.beta_low < beta < found.best.beta_high
    assert found.best.beta == pytest.approx(beta, rel=0.06)
    assert found.best.base == pytest.approx(0.02, rel=0.06)
    assert sum(one.weight for one in found.fits) == pytest.approx(1)


def test_an_interval_of_95_percent_holds_the_true_rate_as_often() -> None:
    held = 0
    for seed in range(100):
        fits = churn.calibrate(simulate("linear", 0.2, 0.02, 400, seed)).fits
        mine = next(one for one in fits if one.penalty == "linear")
        held += mine.beta_low <= 0.2 <= mine.beta_high
    # Of 100 at 95 %: fewer than 88 come by chance three times in a thousand.
    assert 88 <= held <= 100


def test_the_linear_fit_is_the_worked_one() -> None:
    readers = simulate("linear", 0.2, 0.05, 500, 1)
    (mine,) = (one for one in churn.calibrate(readers).fits if one.penalty == "linear")
    waited, total = readers.idle_s.sum(), readers.time_s.sum()
    # Who left for reasons of their own, per second of reading; the rate while waiting, less that.
    base = readers.left_reading.sum() / (total - waited)

    assert mine.base == pytest.approx(base, rel=1e-9)
    assert mine.beta == pytest.approx(readers.left_waiting.sum() / waited - base, rel=1e-9)


@pytest.mark.parametrize("shape", ["linear", "quadratic", "exponential"])
def test_nothing_near_is_likelier_by_the_formula_written_out(shape: Penalty) -> None:
    readers = simulate("quadratic", 0.05, 0.03, 300, 2)
    (mine,) = (one for one in churn.calibrate(readers).fits if one.penalty == shape)
    slope = {"linear": lambda idle: 1.0, "quadratic": lambda idle: 2 * idle, "exponential": math.exp}[shape]
    penalty = Benefit(alpha=1.0, penalty=shape).penalty_tokens

    def likelihood(base: float, beta: float) -> float:
        total = 0.0
        rows = zip(readers.idle_s, readers.time_s, readers.left_waiting, readers.left_reading, strict=True)
        for idle, time, waiting, reading in rows:
            total -= base * time + beta * penalty(round(idle * 1e9))
            if waiting:
                total += math.log(base + beta * slope(idle))
            elif reading:
                total += math.log(base)
        return total

    top = likelihood(mine.base, mine.beta)
    assert top == pytest.approx(mine.log_likelihood, abs=1e-4)
    for up in (0.98, 1.0, 1.02):
        for across in (0.98, 1.0, 1.02):
            assert likelihood(mine.base * up, mine.beta * across) <= top + 1e-6
    assert mine.aic == pytest.approx(4 - 2 * top, abs=1e-3)
    # At the bounds the likelihood, with the base set anew, has fallen by half of chi-squared's 3.84.
    for bound in (mine.beta_low, mine.beta_high):
        best = max(likelihood(mine.base * (1 + at / 200), bound) for at in range(-80, 81))
        assert top - best == pytest.approx(fit.CHI2_95 / 2, abs=0.01)


def test_shapes_that_cannot_be_distinguished_are_reported_as_alike() -> None:
    # Within short waits e^l is as good as constant.
    found = churn.calibrate(simulate("linear", 2.0, 0.02, 300, 9, wait_s=0.2))
    assert {"linear", "exponential"} <= set(found.indistinguishable)


def test_waiting_without_effect_is_not_shown() -> None:
    assert not churn.calibrate(simulate("linear", 1e-9, 0.05, 3000, 4)).shown


def test_nobody_leaving_while_reading_is_a_base_of_nothing() -> None:
    found = churn.calibrate(simulate("quadratic", 0.05, 0.0, 2000, 3))
    assert found.best.penalty == "quadratic"
    assert found.best.base == pytest.approx(0, abs=1e-3)
    assert found.best.beta == pytest.approx(0.05, rel=0.15)


def test_expected_and_seen_add_up_to_the_same() -> None:
    readers = simulate("quadratic", 0.05, 0.02, 3000, 6)
    found = churn.calibrate(readers).best
    rows = churn.churn_by_idle(readers, found)

    assert sum(row["left"] for row in rows) == readers.left_waiting.sum()
    assert sum(row["waited_s"] for row in rows) == pytest.approx(readers.idle_s.sum())
    assert sum(row["expected"] for row in rows) == pytest.approx(readers.left_waiting.sum(), rel=0.05)
    for row in rows:
        assert abs(row["left"] - row["expected"]) < 4 * math.sqrt(row["expected"])
    wrong = churn.churn_by_idle(readers, churn.calibrate(readers).fits[-1])
    assert max(abs(row["left"] - row["expected"]) / math.sqrt(row["expected"]) for row in wrong) > 4


def complaining(shape: Penalty, beta: float, base: float, count: int, seed: int) -> tuple[Floats, np.ndarray]:
    generator = np.random.default_rng(seed)
    idle = generator.exponential(1.5, count)
    odds = Benefit(alpha=beta, penalty=shape)
    chance = [1 - math.exp(-base - odds.penalty_tokens(round(one * 1e9))) for one in idle.tolist()]
    return idle, generator.random(count) < np.array(chance)


@pytest.mark.parametrize(("shape", "beta"), [("linear", 0.1), ("quadratic", 0.05), ("exponential", 0.02)])
def test_complaints_come_back_too(shape: Penalty, beta: float) -> None:
    found = fit.fit_complaints(*complaining(shape, beta, 0.01, 20_000, 8))

    assert found.best.penalty == shape
    assert found.best.beta_low < beta < found.best.beta_high
    assert found.best.base == pytest.approx(0.01, abs=0.005)


def test_complaints_of_two_waits_are_the_worked_ones() -> None:
    idle = np.repeat([0.0, 1.0], 100)
    reported = np.concatenate([np.arange(100) < 10, np.arange(100) < 40])
    (mine,) = (one for one in fit.fit_complaints(idle, reported).fits if one.penalty == "linear")

    assert mine.base == pytest.approx(-math.log(0.9), rel=1e-9)
    assert mine.beta == pytest.approx(math.log(0.9) - math.log(0.6), rel=1e-9)


def test_too_little_is_refused() -> None:
    some = simulate("linear", 0.2, 0.02, 20, 1)
    with pytest.raises(fit.TooLittleError, match="readers who left while they waited are too few"):
        churn.calibrate(some)
    with pytest.raises(fit.TooLittleError, match="3 complaints are too few"):
        churn.calibrate(some, some.trace_ids[:3])
    nobody = Readers(some.trace_ids, some.idle_s, some.time_s, some.left_waiting, some.left_reading, None, 0)
    with pytest.raises(fit.TooLittleError, match="--worth"):
        churn.worth(nobody)
    assert churn.worth(nobody, 80.0) == 80.0
    with pytest.raises(fit.TooLittleError, match="no upper bound"):
        fit.fit_complaints(np.repeat([0.0, 1.0], 30), np.repeat([False, True], 30))


def test_a_falling_function_is_followed_to_its_zero() -> None:
    assert fit.falling_zero(lambda x: -1.0, 1.0) == 0.0
    assert fit.falling_zero(lambda x: math.inf if x == 0 else 1 / x - 1e-6, 1.0) == pytest.approx(1e6, rel=1e-10)
    assert fit.falling_zero(lambda x: 3 - math.exp(x), 100.0) == pytest.approx(math.log(3), rel=1e-10)


S = 10**9
ENDS = {
    # Reading 5 tokens/s: one token at 0.2 s has been read by 0.4 s; the next is due then.
    "waits for the first token": ([], 3 * S, True),
    "waits after one token": ([S // 5], 2 * S, True),
    "has text left": ([S // 5] * 10, S, False),
    "waited earlier, reads now": ([2 * S] * 10, 3 * S, False),
    "waited earlier, waits again": ([2 * S], 5 * S, True),
}


def test_who_was_waiting_at_the_end_is_seen_from_the_stream(tmp_path: Path) -> None:
    messages = [
        export(*stream_spans([T0_NS + at for at in tokens], request=number, end_ns=T0_NS + end, outcome="cancelled"))
        for number, (tokens, end, _) in enumerate(ENDS.values(), start=1)
    ]
    late = {**IDENTITY, semconv.MEASURED_AT: "server"}
    messages.append(export(*stream_spans([T0_NS + S], request=20, end_ns=T0_NS + S, identity=late)))
    messages.append(export(*stream_spans([T0_NS + S] * 30, request=21, end_ns=T0_NS + S)))
    classes = load_slo()
    (batch,) = audit.load_streams(write_format(tmp_path, "journal.otlp", messages))
    import pyarrow as pa

    table = pa.Table.from_batches([judge_batch(batch, classes)])
    readers = churn.readers_of(table, classes)

    assert readers.left_waiting.tolist() == [*(waiting for *_, waiting in ENDS.values()), False]
    assert readers.left_reading.tolist() == [*(not waiting for *_, waiting in ENDS.values()), False]
    assert readers.worth_tokens == 30.0
    assert len(churn.readers_of(table, classes, "server")) == 1
    with pytest.raises(ValueError, match="nothing was measured at relay"):
        churn.readers_of(table, classes, "relay")


def test_complaints_are_read(tmp_path: Path) -> None:
    path = tmp_path / "complaints.csv"
    path.write_text("when,trace_id,complained\nx,AB,true\ny,cd,false\nz,ef,1\n")
    assert churn.read_complaints(path) == {"ab", "ef"}
    path.write_text("trace_id\nab\n")
    assert churn.read_complaints(path) == {"ab"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"id\nab\n", "complaints.csv:1: no column trace_id"),
        (b"trace_id,complained\nab,perhaps\n", "complaints.csv:2: 'perhaps' is neither"),
        (b"trace_id\n\xff\n", "no CSV in UTF-8"),
    ],
)
def test_complaints_that_cannot_be_read_are_refused(tmp_path: Path, text: bytes, says: str) -> None:
    path = tmp_path / "complaints.csv"
    path.write_bytes(text)
    with pytest.raises(churn.ComplaintsError, match=says):
        churn.read_complaints(path)
    with pytest.raises(churn.ComplaintsError, match=r"missing\.csv: No such file"):
        churn.read_complaints(tmp_path / "missing.csv")
