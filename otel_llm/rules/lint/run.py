"""Run the lints over rule files that are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.rules.lint.action_lints import action_lints, alert_lints
from otel_llm.rules.lint.condition_lints import condition_lints
from otel_llm.rules.lint.lints import Complaint, Placed
from otel_llm.rules.lint.runway_lints import runway_lints
from otel_llm.rules.lint.timing_lints import timing_lints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_llm.rules.files.load import RuleFile
    from otel_llm.rules.files.yamlfile import ConfigError


def lint(
    files: Iterable[RuleFile], classes: frozenset[str] | None = None, token_read_s: Mapping[str, float] | None = None
) -> list[tuple[ConfigError, str]]:
    """Return what is odd in files, in their order, each with the text of its file; the files have no errors.

    `classes`: the names of the SLO classes, None where they are not known; `token_read_s`: see `Placed`.
    """
    read = [
        (file.file, Placed(rule, place, classes, token_read_s or {}))
        for file in files
        if file.file is not None
        for rule, place in zip(file.rules, file.places, strict=True)
    ]
    owner = {id(placed): file for file, placed in read}
    found = [(file, complaint) for file, placed in read for complaint in _of(placed)]
    found += [(owner[id(placed)], complaint) for placed, complaint in alert_lints(placed for _, placed in read)]
    order = {id(file): at for at, file in enumerate(owner.values())}
    errors = [(order[id(file)], complaint.refusal(file), file.text) for file, complaint in found]
    errors.sort(key=lambda one: (one[0], one[1].line or 0, one[1].column or 0))
    return [(error, text) for _, error, text in errors]


def never_true(files: Iterable[RuleFile], classes: frozenset[str]) -> list[ConfigError]:
    """Return which conditions can never hold beside these SLO classes, in the order of the files, without errors."""
    return [
        complaint.refusal(file.file)
        for file in files
        if file.file is not None
        for rule, place in zip(file.rules, file.places, strict=True)
        for complaint in condition_lints(Placed(rule, place, classes))
        if complaint.lint == "never-true"
    ]


def _of(placed: Placed) -> Iterator[Complaint]:
    yield from condition_lints(placed)
    yield from timing_lints(placed)
    yield from runway_lints(placed)
    yield from action_lints(placed)
