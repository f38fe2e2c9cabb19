"""Messages that were given up are sent again: under their id, to where the settings say, and what fails is kept."""

from __future__ import annotations

import base64
import fcntl
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
from support.actions.action_receiver import Came, Receiver, Say, receiving
from support.commands import run

from otel_llm.actions.delivery import dead_letters
from otel_llm.actions.delivery.dead_letters import PATIENCE, TAKEN, BusyError, bury, resend, unbury
from otel_llm.actions.delivery.durable_queue import Message
from otel_llm.export.transport.attempt import Attempt

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
NOW_NS = 1_790_000_000_000_000_000


def message(number: int, to: str = "webhook:oncall", about: str | None = None) -> Message:
    body = json.dumps({"number": number})
    return Message(f"alert_{number}", to, about or f"a{number}", body, NOW_NS, NOW_NS, 3)


def buried(path: Path, messages: Iterable[Message]) -> Path:
    for one in messages:
        bury(path, one, "HTTP 410", NOW_NS)
    return path


def left(path: Path) -> list[tuple[str, str]]:
    """Return the ids that stand in the file, and why; nothing stands beside it."""
    assert not path.with_name(path.name + TAKEN).exists()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["id"], line["reason"]) for line in lines]


class Channel:
    """Answers as a test says, by id; else it takes everything."""

    def __init__(self, **answers: Attempt) -> None:
        self.answers = answers
        self.came: list[str] = []

    def deliver(self, message: Message) -> Attempt:
        self.came.append(message.id)
        return self.answers.get(message.id, Attempt("accepted"))


def sent(path: Path, **places: Any) -> dead_letters.Resent:
    return resend(path, {f"webhook:{name}": place for name, place in places.items()}, lambda: NOW_NS + 1)


def settings(folder: Path, receiver: Receiver) -> Path:
    (folder / "secret").write_text(SECRET + "\n")
    path = folder / "collector.yaml"
    path.write_text(
        "version: 1\nreceivers:\n"
        f"  oncall: {{url: '{receiver.url}/hook', secret_file: secret}}\n"
        f"  gateway: {{url: '{receiver.url}/act', secret_file: secret, kind: action}}\n"
        "alerts: {log: alerts.jsonl}\n"
    )
    return path


def test_all_are_sent_signed_under_their_ids(tmp_path: Path) -> None:
    letters = [*map(message, range(3)), message(7, "log")]
    path = buried(tmp_path / "dead.jsonl", letters)
    with receiving(Receiver()) as receiver:
        ended = run("alerts", "resend", path, "--config", settings(tmp_path, receiver))
    assert (ended.returncode, ended.stdout) == (0, "4 sent\n"), ended.stderr
    assert receiver.ids() == ["alert_0", "alert_1", "alert_2"]
    for number, came in enumerate(receiver.came):
        assert came.path == "/hook"
        assert standardwebhooks.Webhook(SECRET).verify(came.body, dict(came.headers)) == {"number": number}
    assert (tmp_path / "alerts.jsonl").read_text() == message(7).body + "\n"
    assert left(path) == []


def test_what_does_not_arrive_is_kept_and_sent_the_next_time(tmp_path: Path) -> None:
    path = buried(tmp_path / "dead.jsonl", map(message, range(3)))
    away = [True]

    def answer(came: Came, before: int) -> Say:
        return Say(410 if away[0] and came.headers["webhook-id"] == "alert_1" else 200)

    with receiving(Receiver(answer)) as receiver:
        config = settings(tmp_path, receiver)
        ended = run("alerts", "resend", path, "--config", config)
        assert (ended.returncode, ended.stdout) == (1, f"2 sent, 1 kept in {path}\n")
        assert "alert_1 to webhook:oncall: HTTP 410" in ended.stderr
        assert left(path) == [("alert_1", "HTTP 410")]
        assert unbury(path.read_bytes()).tries == 4
        away.clear()
        away.append(False)
        ended = run("alerts", "resend", path, "--config", config)
    assert (ended.returncode, ended.stdout) == (0, "1 sent\n")
    assert receiver.ids() == ["alert_0", "alert_1", "alert_2", "alert_1"]


def test_only_the_settings_say_where_to(tmp_path: Path) -> None:
    """Neither an address in the file, nor a receiver of actions, nor one that is not named there gets anything."""
    with receiving(Receiver()) as receiver, receiving(Receiver()) as elsewhere:
        places = (f"webhook:{elsewhere.url}", elsewhere.url, "webhook:gateway", "webhook:none", "otlp", "oncall")
        path = buried(tmp_path / "dead.jsonl", [message(number, to) for number, to in enumerate(places)])
        ended = run("alerts", "resend", path, "--config", settings(tmp_path, receiver))
    assert ended.returncode == 1
    assert (receiver.came, elsewhere.came) == ([], [])
    for number, to in enumerate(places):
        assert f"kept: alert_{number} to {to}: {to} is not configured" in ended.stderr
    assert left(path) == [(f"alert_{number}", "HTTP 410") for number in range(len(places))]  # why each was given up


@pytest.mark.parametrize("arguments", [[], ["--config", "none.yaml"], ["--config", "broken.yaml"]])
def test_a_file_that_cannot_be_used_is_said_and_nothing_is_sent(tmp_path: Path, arguments: list[str]) -> None:
    path = buried(tmp_path / "dead.jsonl", [message(1)])
    (tmp_path / "broken.yaml").write_text("version: 1\nreceivers: 7\n")
    before = path.read_bytes()
    ended = run("alerts", "resend", path, *arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert path.read_bytes() == before
    assert run("alerts", "resend", tmp_path / "none", "--config", "x").returncode == 2


BROKEN = [
    (b"{", "no JSON"),
    (b"[" * 100_000, "no JSON"),
    (b"\xff\xfe", "no JSON"),
    (b"7", "no JSON object"),
    (b"{}", "`id` is no text"),
    (json.dumps({**message(1).record(), "tries": True}).encode(), "`tries` is no whole number"),
    (json.dumps({**message(1).record(), "body": None}).encode(), "`body` is no text"),
    (json.dumps({**message(1).record(), "id": "a\r\nx: y"}).encode(), "`id` is no word"),
]


@pytest.mark.parametrize(("line", "says"), BROKEN, ids=[says for _, says in BROKEN])
def test_a_broken_line_stays_and_costs_no_other(tmp_path: Path, line: bytes, says: str) -> None:
    path = buried(tmp_path / "dead.jsonl", [message(1)])
    with path.open("ab") as file:
        file.write(line + b"\n")
    buried(path, [message(2)])
    resent = sent(path, oncall=Channel())
    assert (resent.sent, resent.kept) == (2, [])
    ((number, why),) = resent.broken
    assert number == 2
    assert says in why
    assert path.read_bytes() == line + b"\n"


def test_messages_about_the_same_keep_their_order(tmp_path: Path) -> None:
    path = buried(tmp_path / "dead.jsonl", [message(1, about="x"), message(2, about="x"), message(3, about="y")])
    place = Channel(alert_1=Attempt("refused", "HTTP 400"))
    assert sent(path, oncall=place).sent == 1
    assert place.came == ["alert_1", "alert_3"]
    assert [one for one, _ in left(path)] == ["alert_1", "alert_2"]


def test_a_place_that_is_away_is_not_waited_for_with_each_message(tmp_path: Path) -> None:
    path = buried(tmp_path / "dead.jsonl", [*map(message, range(50)), message(99, "webhook:other")])
    place = Channel(**{f"alert_{number}": Attempt("retry", "no connection") for number in range(50)})
    other = Channel()
    assert sent(path, oncall=place, other=other).sent == 1
    assert len(place.came) == PATIENCE
    assert other.came == ["alert_99"]
    assert [one for one, _ in left(path)] == [f"alert_{number}" for number in range(50)]


@pytest.mark.parametrize("where", [0, 1, 2])
def test_interrupted_it_keeps_what_was_not_sent(tmp_path: Path, where: int) -> None:
    path = buried(tmp_path / "dead.jsonl", map(message, range(3)))

    class Interrupted(Channel):
        def deliver(self, message: Message) -> Attempt:
            if message.id == f"alert_{where}":
                raise KeyboardInterrupt
            return super().deliver(message)

    with pytest.raises(KeyboardInterrupt):
        sent(path, oncall=Interrupted())
    assert [one for one, _ in left(path)] == [f"alert_{number}" for number in range(where, 3)]


@pytest.mark.parametrize("cut", range(0, 900, 37))
def test_after_a_crash_nothing_is_lost_and_nothing_sent_twice(tmp_path: Path, cut: int) -> None:
    """A crash while it is taken out leaves some of it in both files; one while it is sent, all of it beside."""
    path = buried(tmp_path / "dead.jsonl", map(message, range(3)))
    data = path.read_bytes()
    path.with_name(path.name + TAKEN).write_bytes(data[:cut])
    if cut >= len(data):
        path.write_bytes(b"")
    place = Channel()
    assert sent(path, oncall=place).sent == 3
    assert sorted(place.came) == ["alert_0", "alert_1", "alert_2"]
    assert left(path) == []


def test_only_one_sends_at_a_time(tmp_path: Path) -> None:
    path = buried(tmp_path / "dead.jsonl", [message(1)])
    with path.with_name(path.name + TAKEN).open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # of the weaker kind: ours must be the only one
        with pytest.raises(BusyError):
            sent(path, oncall=Channel())
    assert unbury(path.read_bytes()).id == "alert_1"


def test_what_the_collector_gives_up_meanwhile_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    path.touch()
    stop = threading.Event()
    given_up: list[int] = []

    def collector() -> None:
        while not stop.is_set():
            given_up.append(len(given_up))
            buried(path, [message(given_up[-1])])

    place = Channel()
    thread = threading.Thread(target=collector)
    thread.start()
    while len(place.came) < 200:
        sent(path, oncall=place)
    stop.set()
    thread.join()
    sent(path, oncall=place)
    assert place.came == [f"alert_{number}" for number in given_up]


ODD = b'\n{"spans": []}\r\n\r\n \nPAR1\x00\r\xff\nno end'


def test_a_file_without_dead_letters_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_bytes(ODD)
    with receiving(Receiver()) as receiver:
        ended = run("alerts", "resend", path, "--config", settings(tmp_path, receiver))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no line of it is a dead letter (line 2: `id` is no text)" in " ".join(ended.stderr.split())
    assert path.read_bytes() == ODD
    assert not path.with_name(path.name + TAKEN).exists()


def test_where_nothing_can_be_sent_the_file_is_not_touched(tmp_path: Path) -> None:
    path = buried(tmp_path / "dead.jsonl", [message(1, "webhook:gone")])
    with path.open("ab") as file:
        file.write(ODD)
    before, changed_ns = path.read_bytes(), path.stat().st_mtime_ns
    resent = sent(path, oncall=Channel())
    assert [reason for _, reason in resent.kept] == ["webhook:gone is not configured"]
    assert [number for number, _ in resent.broken] == [3, 6, 7]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, changed_ns)
    assert not path.with_name(path.name + TAKEN).exists()


def test_lines_that_are_none_stay_byte_for_byte_and_so_does_what_was_not_tried(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    path.write_bytes(ODD + b"\n")
    buried(path, [message(1, "webhook:gone")])
    kept = path.read_bytes()
    buried(path, [message(2)])
    assert sent(path, oncall=Channel()).sent == 1
    assert path.read_bytes() == kept


def test_an_empty_file_has_nothing_to_send(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    for content in (b"", b"\n \r\n"):
        path.write_bytes(content)
        assert sent(path, oncall=Channel()) == dead_letters.Resent()
        assert path.read_bytes() == content
