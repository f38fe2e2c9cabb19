"""The page of a capacity search draws a probe that is not valid as such, not by the verdict of its requests."""

from __future__ import annotations

import json
import re

from otel_llm.bench.capacity.capacity_page import render
from otel_llm.bench.capacity.capacity_search import CapacityResult, ClauseFinding, ProbeResult, SearchPlan
from otel_llm.bench.capacity.objective import parse_objective
from otel_llm.bench.capacity.observations import ProbeEnd
from otel_llm.bench.capacity.statistics.shares import ShareInterval


def test_an_invalid_probe_has_a_colour_and_a_symbol_of_its_own() -> None:
    objective = parse_objective("attainment >= 0.9")
    (clause,) = objective.clauses
    finding = ClauseFinding(clause, 0.95, ShareInterval(0.92, 0.97), 0.95, 400, 400.0, enough=True, unsaid=0)
    probes = [
        ProbeResult(2.0, "holds", finding, None, False, ProbeEnd(1.0, 1.0, 400)),
        ProbeResult(4.0, "holds", finding, None, False, ProbeEnd(1.0, 1.0, 400, invalid="the client was <late>")),
    ]
    page = render("x", CapacityResult(SearchPlan(objective, 1.0, 8.0), low=2.0, probes=probes))
    data = re.search(r"id='figures'>(.*?)</script>", page)
    assert data is not None
    figures = json.loads(data[1])

    for name, axis in (("shares", "x"), ("search", "y")):
        drawn = {trace["name"]: trace for trace in figures[name]["data"]}
        assert {kind: trace[axis] for kind, trace in drawn.items()} == {"holds": [2.0], "not valid": [4.0]}
        assert drawn["not valid"]["marker"]["symbol"] != drawn["holds"]["marker"]["symbol"]
        assert drawn["not valid"]["text"] == ["4 requests/s, 400 requests<br>not valid: the client was &lt;late&gt;"]
