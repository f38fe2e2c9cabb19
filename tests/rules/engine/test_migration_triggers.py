"""Section 5.4 of Wang et al.: the TBT rule, the idle rule and the runway rule on deliveries with growing contention."""

from __future__ import annotations

import json
import random
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.requirements import TRACES, require

from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.stream import Stream

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "migration-triggers"
sys.path.insert(0, str(FOLDER))  # a folder of scripts, which find each other as they do when they are run

import day as days  # noqa: E402
import figure_10  # noqa: E402
from arrivals import DAY_NS, capacity, day, load_at, read_trace  # noqa: E402
from pacing import (  # noqa: E402
    CACHE_TOKENS,
    MOST_RUNNING,
    MS,
    PREFILL_MS,
    STEP_CONTEXTS,
    STEP_MS,
    Request,
    S,
    prefill_ns,
    serve,
    step_ns,
)
from watching import View as StreamView  # noqa: E402
from watching import Wait, reports, triggers, waits, watch  # noqa: E402

CHAT = load_slo().get("chat")
COMMITTED: dict[str, Any] = json.loads((FOLDER / "day.json").read_text("utf-8"))


def crowd(seed: int, count: int = 400, per_s: float = 9.0) -> list[Request]:
    """Requests that no trace is needed for: more than the engine can take, so that readers do wait."""
    draw = random.Random(seed)
    at_s, found = 0.0, []
    for _ in range(count):
        at_s += draw.expovariate(per_s)
        found.append(Request(round(at_s * S), draw.choice((200, 900, 1500, 4000)), draw.randint(1, 400)))
    return found


# The model of pacing.


def test_the_points_of_the_tables_are_met() -> None:
    for batch, row in STEP_MS.items():
        for context, ms in zip(STEP_CONTEXTS, row, strict=True):
            assert step_ns(batch, batch * context) == pytest.approx(ms * MS, abs=1)
    for prompt, ms in PREFILL_MS:
        assert prefill_ns(prompt) == round(ms * MS)


def test_between_the_points_it_is_linear() -> None:
    # Batch 192 lies half-way between 128 (24.8 ms at 1,024) and 256 (43.7 ms); context 1,536 between 1,024 and 2,048.
    assert step_ns(192, 192 * 1024) == 34_250_000
    assert step_ns(128, 128 * 1536) == 29_650_000
    assert prefill_ns(640) == 44_000_000
    # Beyond 8,192 as from 4,096 to there: 102 + 45.6 ms.
    assert step_ns(128, 128 * 12_288) == 147_600_000
    with pytest.raises(ValueError, match="257"):
        step_ns(257, 257)


def test_alone_a_reply_comes_at_the_pace_of_its_context() -> None:
    for engine in ("mixed", "decode"):
        served = serve([Request(5 * S, 1024, 4)], engine)
        first_ns = 5 * S + 65 * MS
        steps_ns = [step_ns(1, 1025), step_ns(1, 1026), step_ns(1, 1027)]
        assert served.tokens_ns(0) == [first_ns + sum(steps_ns[:count]) for count in range(4)]


def test_a_prompt_stops_the_decode_of_others_on_a_mixed_engine_and_nowhere_else() -> None:
    requests = [Request(0, 1024, 20), Request(100 * MS, 4096, 20)]
    gaps = {}
    for engine in ("mixed", "decode"):
        tokens_ns = serve(requests, engine).tokens_ns(0)
        gaps[engine] = max(after - before for before, after in pairwise(tokens_ns))
    assert gaps["mixed"] == pytest.approx(259 * MS + step_ns(2, 2 * 2561), abs=MS)
    assert gaps["decode"] < 13 * MS


@pytest.mark.parametrize("engine", ["mixed", "decode"])
def test_everybody_is_served_in_full_and_the_engine_is_never_overfull(engine: Any) -> None:
    requests = crowd(1, per_s=60.0)
    served = serve(requests, engine)
    running = [0] * (len(served.steps_ns) + 1)
    held = [0] * (len(served.steps_ns) + 1)
    for number, one in enumerate(requests):
        tokens_ns = served.tokens_ns(number)
        assert len(tokens_ns) == one.output
        assert tokens_ns[0] >= one.at_ns + prefill_ns(one.prompt)
        assert all(before < after for before, after in pairwise(tokens_ns))
        for step in range(served.begin[number], served.begin[number] + one.output - 1):
            running[step] += 1
            held[step] += one.prompt + one.output
    assert max(running) <= MOST_RUNNING
    assert max(running) > 100
    assert max(held) <= CACHE_TOKENS
    # Each step took as long as the model says for those who ran in it.
    idle_until = max(one.at_ns for one in requests)
    busy = [at for at, end_ns in enumerate(served.steps_ns) if end_ns > idle_until][1:]
    if engine == "decode":
        for step in busy:
            cached = sum(
                one.prompt + 1 + step - served.begin[number]
                for number, one in enumerate(requests)
                if one.output > 1 and 0 <= step - served.begin[number] < one.output - 1
            )
            assert served.steps_ns[step] - served.steps_ns[step - 1] == step_ns(running[step], cached)


# The rules on streams of the model.


def first_triggers(tokens_ns: list[int]) -> dict[str, int]:
    """Say from the definitions, without the engine, when each of the compared rules fires first."""
    found: dict[str, int] = {}
    for name, limit_ns in (("Tbt50ms", 50 * MS), ("Tbt200ms", 200 * MS), ("Tbt1s", S)):
        for before, after in pairwise(tokens_ns):
            if after - before > limit_ns + 1:
                found[name] = before + limit_ns + 1
                break
    dry_ns = tokens_ns[0] + CHAT.pace_ns
    for count, (at_ns, next_ns) in enumerate(pairwise(tokens_ns), start=1):
        if next_ns > dry_ns + 1:
            found.setdefault("Idle", dry_ns + 1)
        low_ns = max(at_ns, dry_ns - S + 1)
        if count > 10 and low_ns < next_ns:
            found.setdefault("Runway", low_ns)
        dry_ns = max(dry_ns, next_ns) + CHAT.pace_ns
    return found


def test_the_engine_fires_where_the_definitions_say() -> None:
    requests = crowd(2)
    served = serve(requests, "mixed")
    rules = days.compared_rules()
    names = set()
    for number in range(0, len(requests), 9):
        tokens_ns = served.tokens_ns(number)
        fired = triggers(watch(rules, CHAT, requests[number].at_ns, tokens_ns, number + 1))
        ours = {name: at_ns for name, at_ns in fired.items() if not name.startswith("Reader")}
        wanted = first_triggers(tokens_ns)
        # The last token may itself bring the runway below a second: the stream is then over.
        assert {name: at_ns for name, at_ns in ours.items() if at_ns < tokens_ns[-1]} == wanted
        names |= set(fired)
    assert names == set(days.NAMES)


def test_streams_that_are_watched_together_fire_as_each_alone() -> None:
    requests = crowd(3, count=40)
    served = serve(requests, "mixed")
    rules = days.compared_rules()
    engine = RuleEngine(rules)
    views: dict[Any, StreamView] = {}
    together: dict[int, dict[str, int]] = {}
    heard = [(one.at_ns, 0, number, False) for number, one in enumerate(requests)]
    for number in range(len(requests)):
        tokens_ns = served.tokens_ns(number)
        heard += [(at_ns, 1, number, token) for at_ns, token in reports(tokens_ns)]
        heard.append((tokens_ns[-1], 2, number, False))
    decisions = []
    for at_ns, what, number, token in sorted(heard):
        decisions += engine.advance(at_ns - 1, views)
        key = ((number + 1).to_bytes(16, "big"), (number + 1).to_bytes(8, "big"), "default", 0)
        if what == 0:
            views[key] = StreamView(key, Stream(CHAT, at_ns), at_ns)
        view = views[key]
        if token:
            view.stream.extend((at_ns,))
        view.watermark_ns = at_ns
        if what < 2:
            engine.update(view, at_ns)
            decisions += engine.advance(at_ns, views)
        else:
            decisions += engine.advance(at_ns, views)
            decisions += engine.ended(view, at_ns, at_ns)
            del views[key]
    for one in decisions:
        if one.state == "firing" and one.stream is not None:
            number = int.from_bytes(one.stream[1], "big") - 1
            together.setdefault(number, {}).setdefault(one.rule, one.flip_ns)
    alone = {}
    for number, request in enumerate(requests):
        fired = triggers(watch(rules, CHAT, request.at_ns, served.tokens_ns(number), number + 1))
        if fired:
            alone[number] = fired
    assert together == alone
    assert len(alone) > 20


def test_real_waits_are_what_the_arithmetic_of_the_product_says() -> None:
    requests = crowd(4)
    served = serve(requests, "mixed")
    waited = 0
    for number, one in enumerate(requests):
        tokens_ns = served.tokens_ns(number)
        stream = Stream(CHAT, one.at_ns)
        stream.extend(tokens_ns)
        verdict = stream.finish(tokens_ns[-1], "completed")
        found = waits(tokens_ns, CHAT.pace_ns)
        assert sum(wait.waited_ns for wait in found) == verdict.idle_decode_ns
        waited += bool(found)
    assert waited > 100
    # Worked: 200 ms a token; the second comes 500 ms after the first, the third at once, the fourth 700 ms later.
    assert waits([0, 500 * MS, 500 * MS, 1200 * MS], CHAT.pace_ns) == [
        Wait(200 * MS, 500 * MS, 300 * MS),
        Wait(900 * MS, 1200 * MS, 300 * MS),
    ]


def test_a_silence_is_reported_as_the_product_reports_it() -> None:
    assert list(reports([0, 3 * S])) == [
        (0, True),
        (250 * MS, False),
        (500 * MS, False),
        (1500 * MS, False),
        (2500 * MS, False),
        (3 * S, True),
    ]


def test_what_a_trigger_was_worth_is_counted() -> None:
    wait, later = Wait(10 * S, 11 * S, S), Wait(20 * S, 21 * S, S)
    found: list[tuple[int | None, list[Wait]]] = [
        (4 * S, [wait]),  # before, by 6 s
        (9 * S, [wait, later]),  # before, by 1 s
        (10 * S, [wait]),  # during: it began at this instant
        (11 * S, [wait]),  # too late, nothing follows
        (12 * S, [wait, later]),  # too late for the first wait; another one follows
        (None, [wait]),  # missed
        (5 * S, []),  # a false alarm
        (None, []),
    ]
    assert days.judge(found) == {
        "triggers": 6,
        "followed": 4,
        "before": 2,
        "during": 1,
        "none": 3,
        "lead_s": [1.0, 1.0, 6.0],
    }


# Figure 10.


def test_figure_10_is_what_is_decided_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    figure_10.draw(tmp_path)
    assert json.loads((tmp_path / "figure-10.json").read_text()) == json.loads((FOLDER / "figure-10.json").read_text())
    assert (FOLDER / "figure-10.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_in_figure_10_the_idle_rule_fires_never_or_later() -> None:
    decode, mixed = json.loads((FOLDER / "figure-10.json").read_text("utf-8"))
    # The gaps grow; the TBT rule fires at a; the reader of chat never runs out of text, and the idle rule never fires.
    gaps = [after - before for before, after in pairwise(decode["tokens_ns"])]
    assert sum(gaps[:100]) < sum(gaps[300:400]) < sum(gaps[600:700])
    assert set(decode["fired_ns"]) == {"Tbt50ms"}
    assert decode["fired_ns"]["Tbt50ms"] < decode["tokens_ns"][-1]
    assert decode["waits_ns"] == []
    # The second reader has six seconds of text at a, and runs out of it at b.
    fired = mixed["fired_ns"]
    assert fired["Tbt50ms"] < fired["Tbt200ms"] < fired["Idle"]
    assert fired["Idle"] == mixed["waits_ns"][0][0] + 1
    assert 5 * S < fired["Idle"] - fired["Tbt200ms"] < 7 * S


# The day.


@pytest.fixture(scope="module")
def trace() -> list[Request]:
    require("traces")
    return read_trace(TRACES / "azure_2023_conv.csv")


def test_the_trace_is_read(trace: list[Request]) -> None:
    assert len(trace) == 19_366
    # 18:15:46.6805900 and 18:15:50.9951690
    assert trace[:2] == [Request(0, 374, 44), Request(4_314_579_000, 396, 109)]
    assert sum(one.output for one in trace) / len(trace) == pytest.approx(211.1, abs=0.1)


def test_a_day_follows_the_clock_and_the_seed(trace: list[Request]) -> None:
    requests = day(trace, 3.0, 6)
    part = (12 * 3600 * S, 13 * 3600 * S)
    assert day(trace, 3.0, 6, *part) == day(trace, 3.0, 6, *part) != day(trace, 3.0, 7, *part)
    hours = [0] * 24
    for one in requests:
        assert 0 <= one.at_ns < DAY_NS
        hours[one.at_ns // (3600 * S)] += 1
    for hour, count in enumerate(hours):
        assert count == pytest.approx(3.0 * 3600 * load_at((hour * 3600 + 1800) * S), rel=0.08)
    assert capacity(trace, "mixed") < capacity(trace, "decode")


def test_the_short_form_is_the_committed_one(trace: list[Request]) -> None:
    assert [days.study(trace, engine, **days.SHORT) for engine in days.ENGINES] == COMMITTED["short"]


def test_every_run_of_the_day_stands_in_the_readme() -> None:
    assert [(run["engine"], run["load"]) for run in COMMITTED["runs"]] == [
        (engine, load) for engine in days.ENGINES for load in days.LOADS
    ]
    readme = (FOLDER / "README.md").read_text("utf-8")
    assert f"{days.BEGIN}\n{days.tables(COMMITTED['runs'])}\n{days.END}" in readme
    for run in COMMITTED["runs"]:
        assert run["watched"] == days.SAMPLE
        for one in run["rules"].values():
            assert one["followed"] <= one["triggers"] <= run["watched"]
            assert one["before"] + one["during"] + one["none"] == run["waited"]
