"""The page of facts and the editors' schema are the code's tables; the schema refuses only what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from click.testing import CliRunner

from otel_llm.cli.rules_commands.rules_command import rules
from otel_llm.config.yaml_file import ConfigError, load_yaml
from otel_llm.rules.docs.facts_page import facts_page
from otel_llm.rules.files.editor_schema import rule_schema, schema_text
from otel_llm.rules.files.load import rule_files
from otel_llm.rules.files.ruleset import Verb
from otel_llm.rules.files.schema import ActionShape, FileShape, GroupShape, RuleShape
from otel_llm.rules.files.shipped import shipped_rules_dir
from otel_llm.rules.language.facts import FACTS, WINDOWS, in_scope
from otel_llm.rules.lint.check import check_rules

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parents[1]
RIGHT = rule_files([shipped_rules_dir()])
LINTED = sorted((HERE / "lint" / "lints").glob("*.yaml"))
WRONG = sorted((HERE / "lint" / "mistakes").glob("*.yaml")) + sorted((HERE / "files" / "hostile").glob("*.yaml"))
VALIDATOR = jsonschema.Draft202012Validator(rule_schema())


def test_the_page_of_facts_is_current() -> None:
    page = (ROOT / "docs" / "facts.md").read_text(encoding="utf-8")
    assert page == facts_page(), "run `python -m otel_llm.rules.docs.facts_page docs/facts.md` and read the difference"


def test_every_fact_stands_on_the_page_once_with_its_type_and_range() -> None:
    page = facts_page()
    for name, fact in FACTS.items():
        assert page.count(f"`{name}`") >= 1, name
        heading = next(line for line in page.splitlines() if line.startswith("### ") and f"`{name}`" in line)
        entry = page.split(heading)[1].split("### ")[0]
        assert f"- type: {fact.type}" in entry
        assert "- range: " in entry
    assert "- range: 0.0 to 1.0" in page.split("### `fluidity_index`")[1].split("###")[0]
    assert "- range: any number" in page.split("### `runway_seconds`")[1].split("###")[0]


def test_the_committed_schema_is_current() -> None:
    kept = (ROOT / "rules" / "rules.schema.json").read_text(encoding="utf-8")
    assert kept == schema_text(), "run `otel-llm rules schema > rules/rules.schema.json` and read the difference"
    reported = CliRunner().invoke(rules, ["schema"])
    assert (reported.exit_code, reported.output) == (0, kept)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(rule_schema())


def test_the_schema_knows_the_keys_that_are_read() -> None:
    definitions = rule_schema()["$defs"]
    shapes: dict[str, Any] = {"rule": RuleShape, "action": ActionShape, "group": GroupShape}
    for name, shape in shapes.items():
        assert set(definitions[name]["properties"]) == keys(shape), name
        required = {info.validation_alias or key for key, info in shape.model_fields.items() if info.is_required()}
        assert set(definitions[name].get("required", ())) == required
    assert set(rule_schema()["properties"]) == keys(FileShape)
    for verb, key in VERB_KEYS.items():
        assert set(definitions["action"]["properties"][verb]["properties"]) == {"only_if", *key}, verb
    assert set(VERB_KEYS) == set(get_args(Verb))


VERB_KEYS = {
    "alert": ("name", "by"),
    "migrate": ("to",),
    "preempt": (),
    "abort": (),
    "drain": (),
    "scale": ("by",),
    "webhook": ("to",),
}


@pytest.mark.parametrize("verb", VERB_KEYS)
def test_the_verbs_take_what_the_parser_takes(verb: str) -> None:
    shape = next(kind for kind in get_args(ActionShape.model_fields[verb].annotation) if kind is not type(None))
    assert keys(shape) == {"only_if", *VERB_KEYS[verb]}


def keys(shape: Any) -> set[str]:
    return {info.validation_alias or key for key, info in shape.model_fields.items()}


def test_its_descriptions_name_every_fact() -> None:
    text = rule_schema()["$defs"]["condition"]["description"]
    for name in (*in_scope("stream"), *in_scope("class")):
        if not name.endswith(tuple(f"_{window}" for window in WINDOWS[1:])):
            assert f"{name} ({FACTS[name].type})" in text


@pytest.mark.parametrize("path", RIGHT + LINTED, ids=lambda path: path.stem)
def test_what_is_read_is_valid(path: Path) -> None:
    VALIDATOR.validate(load_yaml(path).data)


def test_what_is_not_valid_is_refused_and_most_that_is_refused_is_not_valid() -> None:
    invalid, seen = set(), 0
    for path in WRONG:
        try:
            data = load_yaml(path).data
        except ConfigError:
            continue
        seen += 1
        if not VALIDATOR.is_valid(json.loads(json.dumps(data))):
            invalid.add(path.stem)
            assert check_rules([path]).errors
    must = "unknown_rule_key unknown_verb two_verbs unknown_mode bad_rate alert_without_name scale_by_nothing"
    assert {*must.split(), "unknown_scope", "no_when", "negative_duration", "webhook_url", "empty_actions"} <= invalid
    assert seen > 60
