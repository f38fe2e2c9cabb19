"""However exports are cut, however time passes, with columns or without: rows, windows and decisions are the same."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest
from support.core.core_fleets import Seen, advances, fleet
from support.core.core_rules import rule_set

from otel_llm.readers.rows import Row

FLEETS = int(os.environ.get("OTEL_LLM_FLEETS", "30"))
"""More for a long run: 0.2 s each."""


def by_key(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (str(row["trace_id"]), str(row["span_id"]), str(row["choice"])))


@pytest.mark.parametrize("seed", range(FLEETS))
def test_the_sieve_and_the_columns_change_nothing(seed: int) -> None:
    random = Random(seed)
    one = replace(fleet(random), rules=rule_set(random))
    instants = advances(random, one)
    usual = Seen(one).run()
    for other in (
        Seen(one).run(columns=False),
        Seen(one).run(advances=instants),
        Seen(one, by_columns=False).run(),
        Seen(one, by_columns=False).run(advances=instants, columns=False),
    ):
        assert by_key(other.rows) == by_key(usual.rows)
        assert other.windows == usual.windows
        assert other.story() == usual.story()
        assert other.totals() == usual.totals()
