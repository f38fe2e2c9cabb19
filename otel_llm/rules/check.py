"""`otel-llm rules check`: what is wrong with rule files, each finding with its line and a caret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from otel_llm.rules.lint import lint
from otel_llm.rules.load import RuleFile, read_rule_files, rule_files
from otel_llm.rules.place import RuleError, source_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from otel_llm.rules.yamlfile import ConfigError

Kind = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: its kind, `file:line:column: key: message (advice)`, and the lines that show the place."""

    kind: Kind
    text: str
    shown: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join((self.text, *self.shown))


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked and found."""

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

    def exit_code(self, *, strict: bool = False) -> int:
        """Return 1 where a file is refused, or, if strict, warned about; else 0."""
        return int(bool(self.errors or (strict and self.warnings)))

    def __str__(self) -> str:
        total = f"{_count(self.rules, 'rule')} in {_count(self.files, 'file')}"
        counts = f"{_count(self.errors, 'error')}, {_count(self.warnings, 'warning')}"
        return "\n".join([*map(str, self.findings), f"{total}: {counts}"])


def check_rules(
    arguments: Iterable[str | Path], executors: Collection[str] = (), classes: Collection[str] | None = None
) -> Report:
    """Check files, folders and globs as one set of rules; raises UnreadableConfigError where one cannot be read.

    Lints are looked for once nothing is wrong; `classes`: the names of the SLO classes, where they are known.
    """
    files = read_rule_files(rule_files(arguments), executors)
    findings = [finding for file in files for finding in _findings(file)]
    if not any(file.errors for file in files):
        known = None if classes is None else frozenset(classes)
        findings += [finding(error, source, "warning") for error, source in lint(files, known)]
    return Report(len(files), sum(len(file.rules) for file in files), tuple(findings))


def finding(error: ConfigError, source: str | None, kind: Kind = "error") -> Finding:
    """Show an error with the line that it points at and a caret below."""
    if source is None or error.line is None or error.column is None:
        return Finding(kind, str(error))
    line = source_line(source, error.line)
    length = error.length if isinstance(error, RuleError) else 1
    number = f"{error.line:>5} | "
    # A tab before the caret stays a tab, so that the caret stands below what it means however wide a tab is.
    lead = "".join("\t" if char == "\t" else " " for char in line[: error.column - 1])
    caret = f"{' ' * (len(number) - 2)}| {lead}{'^' * length}"
    return Finding(kind, str(error), (f"{number}{line}".rstrip(), caret))


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
