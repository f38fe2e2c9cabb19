"""The summary from arrays is the summary of the rows, to the bit."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.audit import summary_oracle
from support.audit.summary_oracle import judgements
from support.chance import chances

from otel_llm.slo.classes import OUTCOMES, Objective, SloClass, SloClasses
from otel_llm.slo.summary import summarise

CLASSES = SloClasses(
    (
        SloClass("a", objective=Objective(Fraction(9, 10), Fraction(99, 100), Fraction(99, 100))),
        SloClass("b"),
        SloClass("c", objective=Objective(Fraction("0.333333333333333333333333"))),
    ),
    "a",
)


def row(random: Random) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return None if random.random() < 0.2 else value

    due = random.randrange(50)
    judged = random.random() < 0.8
    return {
        "slo_class": random.choice("abc"),
        "measured_at": random.choice(("client", "server")),
        "outcome": random.choice(OUTCOMES),
        "start_unix_nano": maybe(random.randrange(10**18)),
        "tokens": maybe(random.randrange(10**6)),
        "tokens_read": maybe(random.randrange(10**6)),
        "coverage": maybe(random.choice((1.0, 1.0, 0.5))),
        "ttft_s": maybe(random.random()),
        "ttfo_s": maybe(random.random()),
        "tpot_s": maybe(random.random()) if judged else None,
        "e2e_s": maybe(random.random() * 9),
        "tbt_max_s": None,
        "idle_s": random.choice((0.0, random.random() * 10)) if judged else None,
        "deadlines": due if judged else None,
        "deadline_misses": random.randrange(due + 1) if judged else None,
        "fluidity_index": random.random() if judged and due else None,
        "met": maybe(random.random() < 0.7) if judged else None,
        "benefit": random.uniform(-1e3, 1e9) if judged else None,
        "fluid_tbt_ns": maybe(random.randrange(1, 10**9)),
    }


@given(chances(), st.integers(0, 40), st.sampled_from([None, 0, 123_456_789]))
def test_the_arrays_say_what_the_rows_say(random: Random, count: int, span_ns: int | None) -> None:
    rows = [row(random) for _ in range(count)]
    wanted = summary_oracle.summarise(rows, CLASSES, span_ns, 3)
    found = summarise(judgements(rows), CLASSES, span_ns, 3)
    assert found == wanted
    assert repr(found) == repr(wanted)
