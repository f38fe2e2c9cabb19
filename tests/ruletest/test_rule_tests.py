"""`otel-llm rules test`: the page's example, worked scripts of every kind, what it says and how it exits."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from otel_llm.backtest.cases import case_schema as shape
from otel_llm.backtest.cases.case_parser import read_test_file
from otel_llm.backtest.cases.case_runner import Result, run_test
from otel_llm.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/rules-test.md").read_text(encoding="utf-8")

RULES = """
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Gap                 # fires while no token has come for longer than 400 ms
    when: 'gap_seconds > 0.4'
    max_fact_age: 1500ms
    actions:
    - migrate: {only_if: 'exact_resume'}
      ttl: 10s
      budget: {per_request: 1, in_flight: 2}
    - alert: {name: LlmGap, by: [instance]}
  - rule: Held
    when: 'gap_seconds > 0.4'
    for: 300ms
    keep_firing_for: 1s
    on_missing: "false"
    actions: [{alert: {name: LlmHeld, by: []}}]
  - rule: Quiet
    when: 'tokens > 1000'
    actions: [{alert: {name: LlmQuiet}, mode: shadow}]
"""


def cli(*arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(main, ["rules", "test", *arguments])
    return ran.exit_code, ran.output


def results(tmp_path: Path, tests: str, *, head: str = "") -> list[Result]:
    (tmp_path / "rules.yaml").write_text(RULES)
    path = tmp_path / "t.yaml"
    path.write_text(f"version: 1\nrule_files: [rules.yaml]\n{head}tests:\n{textwrap.dedent(tests)}")
    file = read_test_file(path)
    return [run_test(file, one) for one in file.tests]


def passes(tmp_path: Path, tests: str, *, head: str = "") -> None:
    for one in results(tmp_path, tests, head=head):
        assert one.passed, one.text("t.yaml")


def block(language: str, number: int = 0) -> str:
    return str(re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[number])


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "chat.test.yaml"
    path.write_text(block("yaml"))
    (tmp_path / "chat.yaml").write_text((ROOT / "rules/chat.yaml").read_text())
    return path


def test_the_example_of_the_page_passes(example: Path) -> None:
    code, reported = cli(str(example))
    assert (code, reported.splitlines()[-1]) == (0, "1 passed, 0 failed")


def test_the_failure_that_the_page_shows_is_one(example: Path) -> None:
    example.write_text(example.read_text().replace("[{stream: r1, since: 1s}]", "[{stream: r1, since: 1.2s}]"))
    code, reported = cli(str(example))
    assert code == 1
    for line in block("text").splitlines():
        assert line in reported.replace(f"{example.parent}/", ""), line


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("runway_seconds < 0.2", "runway_seconds < -0.2"),
        ("gap_seconds > 0.5", "gap_seconds > 0.7"),
        ("for: 100ms", "for: 200ms"),
        ("resolve_when: 'runway_seconds > 1.0'", "resolve_when: 'runway_seconds > 9.0'"),
        ("only_if: 'exact_resume'", "only_if: '!exact_resume'"),
        ("name: LlmReadersStarving", "name: LlmReaders"),
        ("slo_class, model, instance]", "slo_class, model]"),
    ],
)
def test_the_example_notices_a_change_of_the_rule(example: Path, old: str, new: str) -> None:
    rules = example.with_name("chat.yaml")
    assert old in rules.read_text()
    rules.write_text(rules.read_text().replace(old, new, 1))  # in the first rule, the one of the example
    assert cli(str(example))[0] == 1


def test_a_gap_fires_at_its_instant_and_is_resolved_by_the_next_token(tmp_path: Path) -> None:
    # Tokens at 100 and 900 ms: the gap is over 400 ms from 500 ms (and a nanosecond) on. The token at 900 ms follows an
    # empty segment, so that it is reported at once. The stream then ends 100 ms later.
    passes(
        tmp_path,
        """
        - name: t
          streams: [{id: r1, instance: a, arrivals: '100ms, 800ms, wait 100ms, end', exact_resume: true}]
          expect:
          - {at: 499ms, rule: Gap, firing: [], actions: {migrate: 0, alert: 0}}
          - {at: 500ms, rule: Gap, firing: []}
          - {at: 501ms, rule: Gap, firing: [{stream: r1, since: 500ms}], actions: {migrate: 1, alert: 1}}
          - {at: 600ms, stream: r1, facts: {tokens: 1, gap_seconds: 0.5, age_seconds: 0.6, ttft_seconds: 0.1,
                                            slo_class: chat, model: m, exact_resume: true}}
          - {at: 899ms, rule: Gap, firing: [r1]}
          - {at: 900ms, rule: Gap, firing: [], ends: {resolved: 1, ended: 0, refuted: 0}}
          - {at: 950ms, rule: Gap, actions: {migrate: 1, alert: {decided: 1, budget: 0}}}
          - {at: 2s, rule: Gap, ends: {resolved: 1, ended: 0}}
        """,
    )


def test_pending_waits_for_the_for_and_keeps_firing(tmp_path: Path) -> None:
    # From 500 ms on the condition holds: pending, and 300 ms later firing. The token at 900 ms ends it, a second later.
    passes(
        tmp_path,
        """
        - name: t
          streams: [{id: r1, arrivals: '100ms, 800ms, 40x50ms'}]
          expect:
          - {at: 600ms, rule: Held, pending: [{stream: r1, since: 500ms}], firing: []}
          - {at: 799ms, rule: Held, pending: [r1], firing: []}
          - {at: 801ms, rule: Held, pending: [], firing: [{stream: r1, since: 800ms}]}
          - {at: 1899ms, rule: Held, firing: [r1]}
          - {at: 1900ms, rule: Held, firing: [], ends: {resolved: 1}}
        """,
    )


def test_what_is_not_sent_is_missing(tmp_path: Path) -> None:
    # Nothing that is sent from 300 ms on arrives: facts are of 250 ms, and missing 1.5 s later. `hold` stays as it is,
    # `false` counts as not holding, for its second of `keep_firing_for`.
    passes(
        tmp_path,
        """
        - name: t
          streams: [{id: r1, arrivals: '100ms, 100x50ms', telemetry: [{from: 300ms, lost: true}]}]
          expect:
          - {at: 1s, stream: r1, facts: {tokens: 4, fact_age_seconds: 0.75, gap_seconds: 0.75}}
          - {at: 1s, rule: Gap, firing: [{stream: r1, since: 650ms}]}
          - {at: 1s, rule: Held, firing: [{stream: r1, since: 950ms}]}
          - {at: 2700ms, rule: Held, firing: [r1]}
          - {at: 2800ms, rule: Held, firing: []}
          - {at: 60s, rule: Gap, firing: [r1]}
          - {at: 121s, rule: Gap, firing: [], ends: {ended: 1}}
        """,
    )


def test_a_token_that_was_under_way_refutes(tmp_path: Path) -> None:
    # The token at 480 ms is reported at once, but arrives at 680 ms: at 500 ms the gap seemed to be over 400 ms.
    passes(
        tmp_path,
        """
        - name: t
          streams: [{id: r1, arrivals: '100ms, 380ms, 400x20ms', telemetry: [{from: 300ms, to: 600ms, delay: 200ms}]}]
          expect:
          - {at: 600ms, rule: Gap, firing: [{stream: r1, since: 500ms}]}
          - {at: 700ms, rule: Gap, firing: [], ends: {refuted: 1, resolved: 0}}
        """,
    )


def test_copies_share_a_budget_and_make_one_alert(tmp_path: Path) -> None:
    # 50 streams, 1 ms apart, each with one token: all fire, two migrations may be in flight for 10 s.
    passes(
        tmp_path,
        """
        - name: t
          streams: [{id: r, instance: a, arrivals: '100ms', copies: 50, every: 1ms, exact_resume: true},
                    {id: calm, instance: b, arrivals: '100x50ms'}]
          expect:
          - {at: 2s, rule: Gap, firing: 50, actions: {migrate: {decided: 2, budget: 48, only_if: 0}, alert: 50}}
          - {at: 2s, alert: LlmGap, firing: [{instance: a, count: 50}]}
          - {at: 2s, alert: LlmHeld, firing: 1}
          - {at: 2s, alert: LlmQuiet, firing: 0}
          - {at: 530ms, rule: Gap, firing: 30}
          - {at: 2s, stream: r.50, facts: {age_seconds: 1.951}}
        """,
    )


def test_an_action_that_only_if_stops_is_distinguished(tmp_path: Path) -> None:
    passes(
        tmp_path,
        """
        - name: t
          streams: [{id: r, arrivals: '100ms'}]
          expect: [{at: 2s, rule: Gap, firing: [r], actions: {migrate: {decided: 0, only_if: 1, budget: 0}}}]
        """,
    )


def test_classes_may_stand_in_the_file(tmp_path: Path) -> None:
    # Six tokens a second and three tokens: dry half a second after the first.
    for slo in ("slo: {default: fast, classes: {fast: {reading_speed: 6}}}\n", "slo: fast.yaml\n"):
        (tmp_path / "fast.yaml").write_text("version: 1\ndefault: fast\nclasses: {fast: {reading_speed: 6}}\n")
        passes(
            tmp_path,
            """
            - name: t
              streams: [{id: r, arrivals: '300ms, 2x50ms'}]
              expect: [{at: 2s, stream: r, facts: {slo_class: fast, runway_seconds: -1.2}}]
            """,
            head=slo,
        )


def test_who_a_stream_says_it_is(tmp_path: Path) -> None:
    passes(
        tmp_path,
        """
        - name: t
          streams:
          - {id: r, arrivals: '3x100ms reasoning, 2x100ms', class: voice, model: big, instance: i, measured_at: relay}
          expect:
          - {at: 600ms, stream: r, facts: {slo_class: voice, model: big, instance: i, measured_at: relay,
                                           tokens: 5, tokens_read: 2, exact_resume: false}}
        """,
    )


def test_a_failure_says_both_sides(tmp_path: Path) -> None:
    (found,) = results(
        tmp_path,
        """
        - name: t
          streams: [{id: r1, arrivals: '100ms'}, {id: r2, arrivals: '100x50ms'}]
          expect:
          - {at: 1s, rule: Gap, firing: [r2], actions: {migrate: 1}}
          - {at: 1s, rule: Held, firing: 2, ends: {ended: 1}}
          - {at: 1s, stream: r1, facts: {tokens: 2, gap_seconds: 0.9}}
          - {at: 1s, alert: LlmGap, firing: [{instance: a}]}
        """,
    )
    assert not found.passed
    received = [(one.line - 7, one.what, one.expected, one.got) for one in found.differences]
    assert received == [
        (1, "at 1s, rule Gap: firing", "[r2]", "[r1]"),
        (1, "at 1s, rule Gap: actions: migrate", "{decided: 1}", "{decided: 0, only_if: 1}"),
        (2, "at 1s, rule Held: how many are firing", "2", "1"),
        (2, "at 1s, rule Held: ends", "{ended: 1}", "{ended: 0}"),
        (3, "at 1s, stream r1: facts", "{tokens: 2}", "{tokens: 1}"),
        (4, "at 1s, alert LlmGap: firing", "[{instance: a}]", "[{count: 1}]"),
    ]
    assert found.story[0] == "0.500000001s: Gap r1: firing, migrate: only_if (since 0.500000001s)"


def test_a_stream_that_is_over_has_no_facts(tmp_path: Path) -> None:
    (found,) = results(
        tmp_path,
        """
        - name: t
          streams: [{id: r1, arrivals: '100ms, end'}]
          expect: [{at: 1s, stream: r1, facts: {tokens: 1}}]
        """,
    )
    assert [one.got for one in found.differences] == ["the stream is not in flight"]


def test_what_is_seen_does_not_depend_on_where_one_stops(tmp_path: Path) -> None:
    """Decisions are the same whether expectations stop the clock at many instants or at the last alone."""
    streams = "streams: [{id: r, arrivals: '100ms, 700ms, 10x50ms, wait 2s, 20x90ms, end', copies: 7, every: 77ms}]"
    often = "".join(f"\n  - {{at: {at}ms, rule: Gap, ends: {{refuted: 0}}}}" for at in range(0, 9000, 63))
    last = "\n  - {at: 9s, rule: Gap, ends: {refuted: 0}}"
    many, one = results(
        tmp_path, f"- name: many\n  {streams}\n  expect:{often}{last}\n- name: one\n  {streams}\n  expect:{last}\n"
    )
    assert many.passed
    assert many.story == one.story
    assert len(many.story) > 40


def test_exit_codes(example: Path, tmp_path: Path) -> None:
    assert cli(str(example))[0] == 0
    assert cli(str(example), "--run", "three seconds")[0] == 0
    assert cli(str(example), "--run", "no such test")[0] == 2
    assert cli(str(tmp_path / "nowhere.yaml"))[0] == 2
    assert cli()[0] == 2
    example.with_name("chat.yaml").unlink()
    code, reported = cli(str(example))
    assert code == 2
    assert "chat.yaml: No such file" in reported


def test_a_file_that_is_refused_does_not_stop_the_others(example: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("version: 1\ntests: []\n")
    code, reported = cli(str(wrong), str(example))
    assert code == 1
    assert "wrong.yaml:1:1: rule_files: missing" in reported
    assert reported.endswith("1 passed, 0 failed, 1 refused\n")


def test_verbose_tells_what_was_decided(example: Path) -> None:
    assert "ReaderStarving r1: firing, migrate: shadow" not in cli(str(example))[1]
    assert "ReaderStarving r1: firing, migrate: shadow" in cli("-v", str(example))[1]


def test_the_page_names_every_key() -> None:
    for model in (shape.FileShape, shape.TestShape, shape.StreamShape, shape.ExpectShape, shape.TelemetryShape):
        for name, info in model.model_fields.items():
            if name != "version":
                assert re.search(rf"[`{{ ,]{info.validation_alias or name}[`:, ]", PAGE), info.validation_alias or name


SCOPES = """
version: 1
groups:
- name: instances
  scope: instance
  rules:
  - rule: ManyStarve
    when: 'streams >= 4 && starving_share > 0.5'
    for: 2s
    actions:
    - drain: {}
    - alert: {name: LlmManyStarve, by: [instance]}
- name: classes
  scope: class
  rules:
  - rule: Attainment
    when: 'requests_1m >= 10 && attainment_1m < 0.9'
    actions: [{alert: {name: LlmAttainment, by: [slo_class]}}]
"""


def test_rules_of_instances_and_classes(tmp_path: Path) -> None:
    (tmp_path / "scopes.yaml").write_text(SCOPES)
    path = tmp_path / "t.yaml"
    # One token at 100 ms is read at 300 ms: at 1 s all five on i1 starve, three of six on i2; `for` is 2 s.
    # Of the second test's requests twenty are met; the others wait 3 s, the n-th of them ends at 2.1 s + n. Attainment
    # is then 20 / 21 = 0.952, 20 / 22 = 0.909, 20 / 23 = 0.870, the last at the whole second after 5.1 s.
    path.write_text("""
version: 1
rule_files: [scopes.yaml]
tests:
- name: starving readers of one instance
  streams:
  - {id: a, instance: i1, arrivals: '100ms', copies: 5}
  - {id: b, instance: i2, arrivals: '100ms', copies: 3}
  - {id: c, instance: i2, arrivals: '100x50ms', copies: 3}
  expect:
  - {at: 900ms, rule: ManyStarve, firing: [], pending: []}
  - at: 2s
    rule: ManyStarve
    firing: []
    pending: [{slo_class: chat, model: m, instance: i1, measured_at: client, since: 1s}]
  - {at: 2999ms, rule: ManyStarve, firing: 0, pending: 1, actions: {drain: 0}}
  - at: 3s
    rule: ManyStarve
    firing: [{slo_class: chat, model: m, instance: i1, measured_at: client, since: 3s}]
    actions: {drain: 1, alert: 1}
  - {at: 3s, alert: LlmManyStarve, firing: [{instance: i1, count: 1}]}
- name: attainment over a minute
  streams:
  - {id: met, arrivals: '10x10ms, end', copies: 20, every: 100ms}
  - {id: missed, arrivals: 'wait 3s, 10x10ms, end', copies: 5, every: 1s}
  expect:
  - {at: 5999ms, rule: Attainment, firing: []}
  - {at: 6s, rule: Attainment, firing: [{slo_class: chat, model: m, measured_at: client, since: 6s}]}
  - {at: 70s, rule: Attainment, firing: [], ends: {resolved: 1}}
""")
    file = read_test_file(path)
    for one in file.tests:
        result = run_test(file, one)
        assert result.passed, result.text("t.yaml")
