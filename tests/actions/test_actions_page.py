"""What `docs/actions.md` shows is read by the code that it is about."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from actions.orders import order

from otel_llm.actions.execute.events import cloud_event
from otel_llm.actions.execute.executor import RETRYABLE
from otel_llm.actions.execute.executors import executors
from otel_llm.actions.settings import DOES
from otel_llm.collector.settings import load_settings

PAGE = (Path(__file__).parents[2] / "docs" / "actions.md").read_text()


def shown(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(block)


def test_its_settings_are_read_and_allow_what_it_says(tmp_path: Path) -> None:
    for name in ("gateway.secret", "relay.secret"):
        (tmp_path / name).write_text("whsec_" + base64.b64encode(bytes(32)).decode())
    (tmp_path / "vllm.token").write_text("abcdefghijklmnopqrstuvwxyz0123456789\n")
    (tmp_path / "config.yaml").write_text(shown("yaml"))
    settings = load_settings(tmp_path / "config.yaml")
    assert executors(settings) == {"webhook", "abort", "drain", "scale", "migrate", "preempt"}
    for kind in DOES:
        assert f"`{kind}`" in PAGE


def test_its_event_has_the_fields_of_a_real_one() -> None:
    real, reported = json.loads(cloud_event(order(), "/x")), json.loads(shown("json"))
    assert reported.keys() == real.keys()
    assert reported["data"].keys() == real["data"].keys()
    assert reported["data"]["request"].keys() == real["data"]["request"].keys()


def test_its_receiver_runs() -> None:
    exec(compile(shown("python"), "docs/actions.md", "exec"), {})


@pytest.mark.parametrize("status", sorted(RETRYABLE))
def test_it_names_the_answers_that_are_tried_again(status: int) -> None:
    assert str(status) in PAGE
