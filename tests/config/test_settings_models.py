"""The models of settings files are the settings: described, frozen, and the tables of the docs are made from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from support.config.keys import keys_of, models_in

from otel_llm.actions.settings import ServiceSettings
from otel_llm.cli.service_options import named_files
from otel_llm.collector.settings import Limits, Settings
from otel_llm.config.otlp_target import Headers, QueuedTarget
from otel_llm.config.settings_table import settings_table
from otel_llm.relay.settings import RelaySettings

DOCS = Path(__file__).parents[2] / "docs"
KEYS = {(*path, model.__name__): info for model in (Settings, RelaySettings) for path, info in keys_of(model)}


@pytest.mark.parametrize("path", KEYS, ids=".".join)
def test_a_key_has_a_description(path: tuple[str, ...]) -> None:
    """A section has that of its model."""
    models = models_in(KEYS[path].annotation)
    text = KEYS[path].description or (models[0].__doc__ if models else None)
    assert text
    assert len(text.splitlines()[0]) <= 120


def test_the_tables_of_the_docs_are_current() -> None:
    tables = {
        "collector-settings.md": settings_table(Settings),
        "relay.md": settings_table(RelaySettings, ServiceSettings),
    }
    for page, table in tables.items():
        assert table in (DOCS / page).read_text(encoding="utf-8"), f"put this into {page}:\n{table}"


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Settings().limits.viewers = 1


def test_code_uses_names_and_files_use_keys() -> None:
    assert Limits(body_s=1.0) == Limits.model_validate({"body_seconds": 1.0}, context=Path())
    with pytest.raises(ValidationError, match="unknown key"):
        Limits.model_validate({"body_s": 1.0}, context=Path())


def test_the_files_that_settings_name(tmp_path: Path) -> None:
    target = QueuedTarget(endpoint="http://a", headers=Headers((), tmp_path / "headers"))
    settings = Settings.model_validate(
        {
            "alerts": {"log": "log", "dead_letter": "dead"},
            "actions": {"engines": {"e": {"kind": "vllm", "instances": {"a": "http://a"}}}, "kill_switch": "off"},
        },
        context=tmp_path,
    ).model_copy(update={"forward": target})
    assert sorted(named_files(settings, written=True)) == [tmp_path / "dead", tmp_path / "log"]
    assert sorted(named_files(settings, written=False)) == [tmp_path / "headers", tmp_path / "off"]
