"""Run the lints over rule files without errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.rules.lint.action_lints import action_lints, alert_lints
from otel_llm.rules.lint.condition_lints import condition_lints
from otel_llm.rules.lint.lints import LintFinding, LocatedRule
from otel_llm.rules.lint.timing_lints import runway_lints, timing_lints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_llm.config.yaml_file import ConfigError
    from otel_llm.rules.files.load import RuleFile


def lint(
    files: Iterable[RuleFile], classes: frozenset[str] | None = None, token_read_s: Mapping[str, float] | None = None
) -> list[tuple[ConfigError, str]]:
    """Return the findings of the lints in the files' order, each with the text of its file; the files have no errors.

    `classes`: the names of the SLO classes, None if they are not known; `token_read_s`: see `LocatedRule`.
    """
    read = [
        (file.file, LocatedRule(rule, path, classes, token_read_s or {}))
        for file in files
        if file.file is not None
        for rule, path in zip(file.rules, file.key_paths, strict=True)
    ]
    owner = {id(located): file for file, located in read}
    found = [(file, one) for file, located in read for one in _of(located)]
    found += [(owner[id(located)], one) for located, one in alert_lints(located for _, located in read)]
    order = {id(file): at for at, file in enumerate(owner.values())}
    errors = [(order[id(file)], one.config_error(file), file.text) for file, one in found]
    errors.sort(key=lambda one: (one[0], one[1].line or 0, one[1].column or 0))
    return [(error, text) for _, error, text in errors]


def never_true(files: Iterable[RuleFile], classes: frozenset[str]) -> list[ConfigError]:
    """Return the conditions that can never hold with these SLO classes, in the order of the files without errors."""
    return [
        one.config_error(file.file)
        for file in files
        if file.file is not None
        for rule, path in zip(file.rules, file.key_paths, strict=True)
        for one in condition_lints(LocatedRule(rule, path, classes))
        if one.lint == "never-true"
    ]


def _of(located: LocatedRule) -> Iterator[LintFinding]:
    yield from condition_lints(located)
    yield from timing_lints(located)
    yield from runway_lints(located)
    yield from action_lints(located)
