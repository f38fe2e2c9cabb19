"""TBT and TPOT against the readers: counted one by one, and named by trace."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.audit.report_tables import requests_of
from support.examples import examples

from otel_llm.audit.report.classical import (
    Confusion,
    confusions,
    example_lines,
    lines,
    statement,
    threshold_ns,
    verdict,
)
from otel_llm.slo.classes import Deadline, Fluidity, SloClass, SloClasses

MS = 1_000_000
CLASSES = SloClasses(
    (SloClass("chat"), SloClass("tier", deadline=Deadline("dslo", 300 * MS, 30 * MS))),
    "chat",
)


def request(
    number: int, tbt_s: float | None, tpot_s: float | None, wait_s: float | None, **more: Any
) -> dict[str, Any]:
    return {"trace_id": f"{number:032x}", "tbt_p99_s": tbt_s, "tpot_s": tpot_s, "idle_decode_s": wait_s, **more}


WORKED = [
    request(1, 0.9, 0.04, 0.0),  # a gap without a wait
    request(2, 0.7, 0.04, 0.0),
    request(3, 0.8, 0.01, 0.5),  # a stall that TPOT averages away
    request(4, 0.8, 0.2, 2.0),
    request(5, 0.04, 0.03, 0.0),
    request(6, 0.05, 0.05, 0.1),  # on the threshold is within it; and the reader waited
    request(7, None, None, 1.0),  # a reply of one token
    request(8, 0.3, 0.3, None),  # it is not known whether a reader waited
    request(9, 0.04, 0.04, 0.0, slo_class="tier"),
]


def test_the_worked_requests_fall_where_they_belong() -> None:
    tbt, tpot, tier_tbt, tier_tpot = confusions(requests_of(WORKED), CLASSES)

    assert tbt == Confusion(
        name="chat",
        place="client",
        metric="TBT p99",
        threshold_ns=50 * MS,
        warned=2,
        wolf=2,
        hidden=1,
        quiet=1,
        unsaid=2,
        wolf_ids=(f"{1:032x}", f"{2:032x}"),
        hidden_ids=(f"{6:032x}",),
        hidden_wait_s=0.1,
    )
    assert (tpot.warned, tpot.wolf, tpot.hidden, tpot.quiet, tpot.unsaid) == (1, 0, 2, 3, 2)
    assert tpot.hidden_ids == (f"{3:032x}", f"{6:032x}")
    assert tpot.hidden_wait_s == 0.1  # nearest rank: the smaller of two
    # A class whose deadline gives each further token 30 ms is held to these.
    assert (tier_tbt.threshold_ns, tier_tbt.wolf, tier_tpot.wolf) == (30 * MS, 1, 1)
    assert statement([tbt, tpot]) == (
        "TBT p99 raises 4 alarms, 2 of them where no reader waited; it misses 1 of the 3 readers who waited. "
        "TPOT raises 1 alarm, 0 of them where no reader waited; it misses 2 of the 3 readers who waited."
    )
    assert lines([tpot]) == [("chat, client", "TPOT", "50 ms", "6", "1", "0", "2", "3", "100 ms")]
    assert example_lines([tpot]) == [("chat, client", "TPOT", "hid a wait", f"{3:032x}, {6:032x}")]


figures = st.none() | st.sampled_from([0.0, 0.049999999, 0.05, 0.050000001, 1.0])


@given(st.lists(st.tuples(figures, figures), max_size=40))
@settings(max_examples=examples(60))
def test_every_request_is_counted_once(drawn: list[tuple[float | None, float | None]]) -> None:
    rows = [request(number, value, value, wait) for number, (value, wait) in enumerate(drawn)]
    for one in confusions(requests_of(rows), CLASSES):
        known = [(value, wait) for value, wait in drawn if value is not None and wait is not None]
        assert one.warned == sum(value > 0.05 and wait > 0 for value, wait in known)
        assert one.wolf == sum(value > 0.05 and wait == 0 for value, wait in known)
        assert one.hidden == sum(value <= 0.05 and wait > 0 for value, wait in known)
        assert one.quiet == sum(value <= 0.05 and wait == 0 for value, wait in known)
        assert one.judged + one.unsaid == len(drawn)


def test_the_threshold_is_of_the_deadline_and_else_of_the_fluidity() -> None:
    assert threshold_ns(SloClass(fluidity=Fluidity(tbt_ns=70 * MS))) == 70 * MS
    assert threshold_ns(SloClass(deadline=Deadline("ttft_tbt", 1, 20 * MS))) == 20 * MS
    assert verdict(0.05, SloClass()) == "50 ms, within 50 ms"
    assert verdict(0.2, SloClass()) == "200 ms, above 50 ms"


def test_nobody_waited_is_reported_as_that() -> None:
    found = confusions(requests_of([request(1, 0.01, 0.01, 0.0)]), CLASSES)
    assert statement(found) == "TBT p99 raises 0 alarms; no reader waited. TPOT raises 0 alarms; no reader waited."
