"""What the relay's demo shows of rows, replies and decision records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from otel_llm.cli.commands.demo_command import demo
from otel_llm.demo.demo_readers import Reply, read, write
from otel_llm.demo.demo_relay import BARS, Figures, lines, read_records, rules_file

REPLIES = [Reply(i, f"people {i} ", [256, i], "stop") for i in range(4)]


def row(idle_decode_s: float | None, outcome: str = "completed", measured_at: str = "client") -> dict[str, Any]:
    return {"idle_decode_s": idle_decode_s, "outcome": outcome, "measured_at": measured_at}


def shown(straight: Figures, relayed: Figures) -> str:
    return "\n".join(lines(straight, relayed))


def test_figures_are_those_of_the_clients() -> None:
    rows = [row(0.0), row(3.0), row(0.09), row(1.5), row(9.0, measured_at="relay")]
    found = Figures.of(rows, REPLIES, REPLIES)
    assert (found.readers, found.waits_s, found.waited, found.completed) == (4, (3.0, 1.5, 0.09, 0.0), 2, 4)
    assert found.exact


@pytest.mark.parametrize(
    "wrong",
    [
        replace(REPLIES[1], ids=[256, 9]),
        replace(REPLIES[1], text="people 9 "),
        replace(REPLIES[1], finish="length"),
        replace(REPLIES[1], finish=None),
        replace(REPLIES[1], error="broken"),
    ],
)
def test_a_reply_that_differs_is_not_the_same(wrong: Reply) -> None:
    rows = [row(0.0)] * 4
    replies = [REPLIES[0], wrong, *REPLIES[2:]]
    found = Figures.of(rows, replies, REPLIES)
    assert found.same == 3
    assert not found.exact
    assert Figures.of(rows, [wrong], [wrong]).same == wrong.complete


def test_a_reply_that_was_not_recorded_or_not_whole_is_not_exact() -> None:
    assert not Figures.of([row(0.0)] * 3, REPLIES, REPLIES).exact
    assert not Figures.of([*[row(0.0)] * 3, row(0.0, "disconnected")], REPLIES, REPLIES).exact


def test_moves_are_counted_by_their_outcome() -> None:
    decisions = [{"action": "migrate", "outcome": one} for one in ("done", "done", "refuted")]
    found = Figures.of([row(0.0)] * 4, REPLIES, REPLIES, [*decisions, {"action": None, "outcome": "resolved"}])
    assert found.moves == {"done": 2, "refuted": 1}
    assert "2 (and 1 refuted)" in shown(found, found)


def test_a_bar_is_as_long_as_its_wait() -> None:
    straight = Figures.of([row(3.0), row(1.5), row(0.0), row(0.0)], REPLIES, REPLIES)
    relayed = Figures.of([row(0.75), row(0.0), row(0.0), row(0.0)], REPLIES, REPLIES)
    bars = [line.split() for line in shown(straight, relayed).splitlines() if "##" in line]
    assert bars == [["#" * 24, "3", "s", "#" * 6, "750", "ms"], ["#" * 12, "1.5", "s", "0", "s"]]


def test_no_bars_where_nobody_waited_and_no_more_than_fit() -> None:
    nobody = Figures.of([row(0.0), row(None)], REPLIES[:2], REPLIES[:2])
    assert "#" not in shown(nobody, nobody)
    many = Figures.of([row(1.0)] * 30, REPLIES, REPLIES)
    assert sum("##" in line for line in shown(many, many).splitlines()) == BARS
    none = Figures.of([], REPLIES, REPLIES)
    assert "–" in shown(none, none)


def test_replies_come_back_from_their_file(tmp_path: Path) -> None:
    replies = [*REPLIES, Reply(4, error="broken\n", text="é")]
    write(tmp_path / "replies.jsonl", replies)
    assert read(tmp_path / "replies.jsonl") == replies
    assert read_records(tmp_path / "none.jsonl") == []


def test_the_rule_enforces_a_move() -> None:
    text = rules_file().read_text(encoding="utf-8")
    assert "migrate" in text
    assert "mode: enforce" in text


def test_the_exit_status_says_whether_the_replies_were_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for exact, status in ((True, 0), (False, 1)):
        monkeypatch.setattr("otel_llm.demo.demo_relay.show_relay", lambda *_, exact=exact, **__: exact)
        done = CliRunner().invoke(demo, ["--relay", "--out", str(tmp_path / str(exact))])
        assert done.exit_code == status


def test_a_server_that_does_not_start_ends_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise click.ClickException("no server")

    monkeypatch.setattr("otel_llm.demo.demo_children.paced_server", failing)
    done = CliRunner().invoke(demo, ["--relay", "--out", str(tmp_path)])
    assert (done.exit_code, "no server" in done.stderr) == (1, True)
