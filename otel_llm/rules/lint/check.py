"""`otel-llm rules check`: the errors and lints of rule files, each with its line and a caret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from otel_llm.config.source_positions import source_line
from otel_llm.rules.files.expression_errors import RuleError
from otel_llm.rules.files.load import RuleFile, read_rule_files, rule_files
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.rules.lint.action_lints import action_lints, alert_lints
from otel_llm.rules.lint.condition_lints import condition_lints
from otel_llm.rules.lint.lints import LintFinding, LocatedRule
from otel_llm.rules.lint.timing_lints import runway_lints, timing_lints
from otel_llm.slo.classes import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from otel_llm.config.yaml_file import ConfigError
    from otel_llm.rules.files.load import RuleFile
    from otel_llm.slo.classes import SloClasses

Kind = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: its kind, `file:line:column: key: message (advice)`, and its lines of the file."""

    kind: Kind
    text: str
    shown: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join((self.text, *self.shown))


@dataclass(frozen=True, slots=True)
class Report:
    """The checked files and the findings."""

    files: int
    rules: int
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        """Count the findings for which a file is refused."""
        return sum(finding.kind == "error" for finding in self.findings)

    @property
    def warnings(self) -> int:
        """Count the findings that leave a file usable."""
        return sum(finding.kind == "warning" for finding in self.findings)

    @property
    def notes(self) -> int:
        """Count the findings that say what is needed to run a file."""
        return sum(finding.kind == "note" for finding in self.findings)

    def exit_code(self, *, strict: bool = False) -> int:
        """Return 1 if a file is refused, or, if strict, warned about; else 0."""
        return int(bool(self.errors or (strict and self.warnings)))

    def __str__(self) -> str:
        total = f"{_count(self.rules, 'rule')} in {_count(self.files, 'file')}"
        counts = f"{_count(self.errors, 'error')}, {_count(self.warnings, 'warning')}"
        counts += f", {_count(self.notes, 'note')}" if self.notes else ""
        return "\n".join([*map(str, self.findings), f"{total}: {counts}"])


def check_rules(
    arguments: Iterable[str | Path],
    executors: Collection[str] = (),
    classes: Collection[str] | None = None,
    token_read_s: Mapping[str, float] | None = None,
    relay_does: Collection[str] = (),
) -> Report:
    """Check files, folders and globs as one set of rules; raises UnreadableConfigError if one cannot be read.

    `executors`: see `load_rules`; `relay_does`: verbs that may be enforced too, with a note that a relay is needed.
    Lints are run once there are no errors; `classes`: the names of the SLO classes, if known; `token_read_s`: by
    class the seconds in which its reader reads a token, None for the shipped classes.
    """
    files = read_rule_files(rule_files(arguments), {*executors, *relay_does})
    findings = [finding for file in files for finding in _findings(file)]
    if not any(file.errors for file in files):
        known = None if classes is None else frozenset(classes)
        reading = token_read_times(load_slo()) if token_read_s is None else token_read_s
        findings += [finding(error, source, "warning") for error, source in lint(files, known, reading)]
        findings += [note for file in files for note in _notes(file, {*relay_does} - {*executors})]
    return Report(len(files), sum(len(file.rules) for file in files), tuple(findings))


def finding(error: ConfigError, source: str | None, kind: Kind = "error") -> Finding:
    """Format an error with the line that it points at and a caret below."""
    if source is None or error.line is None or error.column is None:
        return Finding(kind, str(error))
    line = source_line(source, error.line)
    length = error.length if isinstance(error, RuleError) else 1
    number = f"{error.line:>5} | "
    # A tab before the caret stays a tab, so that the caret stands below its character however wide a tab is.
    lead = "".join("\t" if char == "\t" else " " for char in line[: error.column - 1])
    caret = f"{' ' * (len(number) - 2)}| {lead}{'^' * length}"
    return Finding(kind, str(error), (f"{number}{line}".rstrip(), caret))


def token_read_times(classes: SloClasses) -> dict[str, float]:
    """Return by class the seconds in which its reader reads a token; the default class first."""
    ordered = (classes.get(classes.default), *classes.classes)
    return {one.name: one.pace_ns / NS_PER_S for one in ordered}


def _notes(file: RuleFile, relay_does: Collection[str]) -> list[Finding]:
    """Return a note for each enforced action that needs a relay."""
    notes = []
    for rule, path in zip(file.rules, file.key_paths, strict=True):
        for index, action in enumerate(rule.actions):
            if file.file is not None and action.mode == "enforce" and action.verb in relay_does:
                message = f"note: a relay is needed, which does `{action.verb}`"
                advice = "run `otel-llm relay --rules` with this file, or name an engine of kind relay in --config"
                error = file.file.refuse((*path, "actions", index, "mode"), message, advice)
                notes.append(finding(error, file.file.text, "note"))
    return notes


def _findings(file: RuleFile) -> list[Finding]:
    source = file.file.text if file.file is not None else _text(file.path)
    return [finding(error, source) for error in file.errors]


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, ValueError):
        return None


def _count(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


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
