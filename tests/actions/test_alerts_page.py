"""What `docs/alerts.md` shows is what the collector reads and sends."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

from support.actions.alerting import T0, S, decision

from otel_llm.actions.alerts.alert_formats import cloud_event_of, line_of
from otel_llm.actions.alerts.firing import Firing
from otel_llm.actions.settings import AlertmanagerSettings, AlertSettings, Receiver
from otel_llm.collector.settings import load_settings

PAGE = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def test_the_settings_are_read_and_show_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("whsec_" + base64.b64encode(bytes(32)).decode())
    (tmp_path / "token.txt").write_text("a-token-of-this-test")
    (tmp_path / "collector.yaml").write_text(block("yaml"))
    read = load_settings(tmp_path / "collector.yaml")
    assert read.receivers == {
        "oncall": Receiver(name="oncall", url="https://hooks.example/alerts", secret_file=tmp_path / "secret.txt")
    }
    assert read.alertmanager == AlertmanagerSettings(
        urls=("http://127.0.0.1:9093",), bearer_file=tmp_path / "token.txt"
    )
    assert read.alerts == AlertSettings(
        log=tmp_path / "alerts.jsonl",
        receivers=("oncall",),
        otlp=read.alerts.otlp,
        dead_letter=tmp_path / "dead_letters.jsonl",
    )


def test_the_event_has_the_shape_that_is_sent() -> None:
    shown = json.loads(block("json"))
    firing = Firing(S, S)
    firing.begin([], None, T0)
    for number in range(12):
        firing.take(decision(number, 1, name="LlmReadersStarving", by=["instance"]))
    (event,) = firing.poll(T0 + 2 * S)
    sent = json.loads(cloud_event_of(line_of(event), "/otel-llm/collector/...", T0 + round(1.2 * S)))
    assert shown.keys() == sent.keys()
    for key in sent.keys() - {"id", "data"}:
        assert shown[key] == sent[key]
    assert shown["data"].keys() == sent["data"].keys()
    shown_words, words = shown["data"].pop("annotations"), sent["data"].pop("annotations")
    assert shown["data"] == sent["data"]
    assert shown_words.items() <= words.items()
