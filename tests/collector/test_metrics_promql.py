"""The queries of `docs/collector-metrics.md`, asked of Debian's Prometheus about counters with known increments."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from support.collector.http_serving import serving
from support.collector.out_verdicts import count, judged, samples
from support.commands import wait_until
from support.integration.interop_prometheus import Prometheus, program, prometheus
from support.patience import WAIT_S

from otel_llm.live.user_metrics import Key, UserMetrics

DOCS = Path(__file__).parents[2] / "docs" / "collector-metrics.md"
STEP_S = 15
HOURS = 2
STEPS = HOURS * 3600 // STEP_S
LAST_5M, LAST_1H = 300 // STEP_S, 3600 // STEP_S

MET = judged([100.0, *[50.0] * 9])
MISSED = judged([100.0, *[20.0] * 4, 5000.0, *[20.0] * 4])
CLASSES = ("chat", "code", "voice", "batch", "agent", "quiet")


def docs_query(title: str) -> str:
    """Return the query of the docs whose comment begins with `title`."""
    blocks = re.findall(r"^```promql\n(.*?)^```", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    queries = [query for block in blocks for query in re.split(r"\n\s*\n", block)]
    (found,) = [query for query in queries if query.startswith(f"# {title}")]
    return found


def ended(step: int, collector: int) -> Counter[tuple[str, bool]]:
    """Return how many requests end, by class and verdict, in the step before a scrape (0: the first).

    Nothing ends in the first minute of the last hour, and the same in every step of the last five minutes: so what
    `rate` says does not hang on whether a range has its left end.
    """
    before_end = STEPS - step
    if before_end > LAST_1H - 4:
        return Counter({("chat", False): 3} if step and before_end > LAST_1H + 4 else {})
    if before_end < LAST_5M:
        bad = {("chat", False): 1 + collector, ("voice", False): 1}
        if before_end == LAST_5M // 2 and collector == 0:
            bad["agent", False] = 1  # the only one there ever was
        return Counter({("chat", True): 5, ("code", True): 4, ("voice", True): 9, ("batch", True): 1} | bad)
    return Counter({("chat", True): 7 + step % 3, ("chat", False): 2, ("code", True): 3, ("code", False): 2 + collector,
                    ("voice", True): 1, ("batch", True): 2})  # fmt: skip


@dataclass
class Fleet:
    """Two collectors that are scraped every 15 s; the second is restarted half an hour before the end."""

    collectors: list[UserMetrics] = field(default_factory=lambda: [new_collector(), new_collector()])
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    requests: list[Counter[tuple[str, bool]]] = field(default_factory=list)
    benefit: Counter[str] = field(default_factory=Counter)

    def run(self, end_s: int) -> None:
        for step in range(STEPS + 1):
            at_s = end_s - (STEPS - step) * STEP_S
            if step == STEPS - 1800 // STEP_S:
                self.collectors[1] = new_collector()
            self.requests.append(Counter())
            for number, metrics in enumerate(self.collectors):
                now = ended(step, number)
                self.requests[-1] += now
                for (slo_class, met), times in now.items():
                    for _ in range(times):
                        self.end(metrics, Key(slo_class, "m", "client", ""), met, late=STEPS - step < LAST_5M)
                self.scrape(metrics, f"{'ab'[number]}:9464", at_s)

    def end(self, metrics: UserMetrics, key: Key, met: bool, late: bool) -> None:
        verdict, arrivals = MET if met else MISSED
        assert (verdict.met, verdict.tokens_read, verdict.benefit is not None) == (met, 10, True)
        count(metrics, key, verdict, arrivals)
        penalty = verdict.tokens_read - (verdict.benefit or 0.0)
        metrics.charge(key, verdict.tokens_read, verdict.idle_ns or 0, penalty + 1.5, 1.5)
        self.benefit[key[0]] += (verdict.benefit or 0.0) if late else 0  # type: ignore[assignment]

    def scrape(self, metrics: UserMetrics, instance: str, at_s: int) -> None:
        for (name, labels), number in samples(metrics).items():
            words = ",".join(f'{label}="{value}"' for label, value in sorted(labels))
            series = f'{name}{{{words},instance="{instance}",job="otel-llm"}}'
            self.series.setdefault(series, []).append((at_s, number))

    def in_the_last(self, steps: int) -> Counter[tuple[str, bool]]:
        return sum(self.requests[-steps:], Counter[tuple[str, bool]]())

    def attainment(self, steps: int) -> dict[str, Fraction]:
        counted = self.in_the_last(steps)
        every = {name: counted[name, True] + counted[name, False] for name in CLASSES}
        return {name: Fraction(counted[name, True], number) for name, number in every.items() if number}


def new_collector() -> UserMetrics:
    metrics = UserMetrics()
    for name in CLASSES:
        metrics.charge(Key(name, "m", "client", ""), 0, 0, 0.0, 0.0)
    return metrics


class Families(CollectorRegistry):
    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def page_of(metrics: UserMetrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(generate_latest(Families(metrics.families())))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler


@dataclass
class Recorded:
    server: Prometheus
    fleet: Fleet
    end_s: int
    live: list[UserMetrics]

    def by_class(self, promql: str) -> dict[str, float]:
        """Return what a query gives at the end of the recorded hours, by class."""
        recorded = urllib.parse.urlencode({"query": promql, "time": self.end_s})
        with urllib.request.urlopen(f"http://{self.server.address}/api/v1/query?{recorded}", timeout=WAIT_S) as answer:
            result = json.loads(answer.read())["data"]["result"]
        found = {one["metric"]["slo_class"]: float(one["value"][1]) for one in result}
        assert len(found) == len(result)
        return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    promtool = program("promtool")
    folder = tmp_path_factory.mktemp("promql")
    end_s = int(time.time()) // STEP_S * STEP_S - 6 * 3600
    fleet = Fleet()
    fleet.run(end_s)
    lines = [f"{name} {value!r} {at_s}" for name, points in fleet.series.items() for at_s, value in points]
    (folder / "metrics.om").write_text("\n".join([*lines, "# EOF\n"]), encoding="utf-8")
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(folder / "metrics.om"), str(folder / "tsdb")]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)
    live = [new_collector(), new_collector()]
    with ExitStack() as pages:
        ports = [pages.enter_context(serving(page_of(metrics))) for metrics in live]
        targets = "','".join(f"127.0.0.1:{port}" for port in ports)
        with prometheus(folder, targets) as running:
            yield Recorded(running, fleet, end_s, live)


def close(found: dict[str, float], expected: dict[str, Fraction]) -> None:
    number = {name: value for name, value in found.items() if not math.isnan(value)}
    assert number == {name: pytest.approx(float(value), rel=1e-12) for name, value in expected.items()}


def test_attainment(recorded: Recorded) -> None:
    over_5m, over_1h = recorded.fleet.attainment(LAST_5M), recorded.fleet.attainment(LAST_1H)
    assert over_5m != over_1h
    assert set(over_1h) == set(CLASSES) - {"quiet"}
    close(recorded.by_class(docs_query("attainment over five minutes")), over_5m)
    close(recorded.by_class(docs_query("attainment over an hour")), over_1h)


def test_smooth_goodput(recorded: Recorded) -> None:
    found = recorded.by_class(docs_query("smooth goodput"))
    del found["agent"]  # what ends in one step only is not the same to every version of `rate`
    assert found == {
        name: pytest.approx(recorded.fleet.benefit[name] / 300, rel=1e-9) for name in CLASSES if name != "agent"
    }
    assert 0 < found["chat"] < recorded.fleet.in_the_last(LAST_5M).total() * 10 / 300


def test_the_share_of_short_gaps(recorded: Recorded) -> None:
    counted = recorded.fleet.in_the_last(LAST_5M)
    expected = {
        name: Fraction(9 * counted[name, True] + 8 * counted[name, False], 9 * every)
        for name in CLASSES
        if (every := counted[name, True] + counted[name, False])
    }
    close(recorded.by_class(docs_query("share of the gaps between tokens")), expected)


def for_class(query: str, name: str, objective: str) -> str:
    assert 'slo_class="chat"' in query
    assert "0.99" in query
    return query.replace('slo_class="chat"', f'slo_class="{name}"').replace("- 0.99", f"- {objective}")


def test_burn_rate(recorded: Recorded) -> None:
    query = docs_query("burn rate of class chat")
    attainment = recorded.fleet.attainment(LAST_1H)
    for name in ("chat", "code"):
        found = recorded.by_class(for_class(query, name, "0.99"))
        assert found == {name: pytest.approx(float((1 - attainment[name]) / Fraction("0.01")), rel=1e-9)}
    # No budget at all: what the docs warn of.
    assert recorded.by_class(for_class(query, "agent", "1.0")) == {"agent": math.inf}
    assert math.isnan(recorded.by_class(for_class(query, "batch", "1.0"))["batch"])


def test_the_alert_wants_both_windows_and_takes_an_objective_of_one(recorded: Recorded) -> None:
    query = docs_query("alert: class chat")
    over_5m, over_1h = recorded.fleet.attainment(LAST_5M), recorded.fleet.attainment(LAST_1H)

    def burns(name: str, objective: str) -> tuple[bool, bool]:
        bound = Fraction("14.4") * (1 - Fraction(objective))
        return 1 - over_1h[name] > bound, 1 - over_5m[name] > bound

    expected = {
        case: burns(*case)
        for case in (("chat", "0.99"), ("code", "0.99"), ("voice", "0.99"), ("agent", "1.0"), ("batch", "1.0"))
    }
    assert list(expected.values()) == [(True, True), (True, False), (False, False), (True, True), (False, False)]
    for (name, objective), both in expected.items():
        assert (recorded.by_class(for_class(query, name, objective)) != {}) == all(both), (name, objective)
    assert recorded.by_class(for_class(query, "quiet", "1.0")) == {}  # nothing ended: no alert


def test_two_collectors_that_are_scraped_add_up(recorded: Recorded) -> None:
    for number, metrics in enumerate(recorded.live):
        for _ in range(3 + number):
            count(metrics, Key("chat", "m", "client", ""), *MET)
        for _ in range(2):
            count(metrics, Key("chat", "m", "client", ""), *MISSED)
    expected = {at: value for at, value in samples(*recorded.live).items() if ("slo_class", "chat") in at[1]}

    def scraped(name: str) -> dict[frozenset[tuple[str, str]], float]:
        found = recorded.server.query(f'sum without (instance, job) ({name}{{slo_class="chat"}})')
        labels = sorted(dict(next(labels for other, labels in expected if other == name)))
        return {frozenset(zip(labels, values, strict=True)): value for values, value in found.items()}

    def as_expected(name: str) -> bool:
        return scraped(name) == {labels: value for (other, labels), value in expected.items() if other == name}

    for name in sorted({name for name, _ in expected}):
        wait_until(f"{name} is scraped", lambda name=name: as_expected(name))
