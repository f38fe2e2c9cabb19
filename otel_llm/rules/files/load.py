"""Find rule files and load them as one set of rules."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_llm.config.sniff import KINDS
from otel_llm.config.yaml_file import ConfigError, UnreadableConfigError, YamlFile, load_yaml
from otel_llm.rules.files.rule_parser import RuleParser
from otel_llm.rules.files.ruleset import Rule, RuleSet
from otel_llm.rules.files.shipped import shipped_rules_dir

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from otel_llm.config.yaml_file import KeyPath

_SUFFIXES: Final = (".yaml", ".yml")
_OTHER_FILES: Final = {key: KINDS[key] for key in ("rule_files", "tests", "classes")}
"""The other files that lie beside rules, by top-level key: what they are, and which option takes them."""


class RulesError(ConfigError):
    """Rules were refused: the first error's text, and all errors in `errors`."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        first = errors[0]
        super().__init__(first.file, first.line, first.column, first.key, first.message, first.advice)
        self.errors = tuple(errors)


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One file as it was read: its valid rules, and all its errors; `file` None if it is not YAML.

    `key_paths`: the path of each rule in the file.
    """

    path: Path
    file: YamlFile | None
    rules: tuple[Rule, ...]
    errors: tuple[ConfigError, ...]
    key_paths: tuple[KeyPath, ...] = ()


def load_rules(arguments: Iterable[str | Path] = (), executors: Collection[str] = ()) -> RuleSet:
    """Load the rules of files, folders and globs; the shipped rules, all in shadow, if none is named.

    `executors`: the verbs besides `alert` that this process can do; for others `mode: enforce` is refused. Raises
    RulesError with all errors, UnreadableConfigError if a file cannot be read.
    """
    return load_with_files(arguments, executors)[0]


def load_with_files(
    arguments: Iterable[str | Path] = (), executors: Collection[str] = ()
) -> tuple[RuleSet, list[RuleFile]]:
    """Load rules as `load_rules` does, and return the files too."""
    named = list(arguments)
    files = read_rule_files(rule_files(named or [shipped_rules_dir()]), executors)
    errors = [error for file in files for error in file.errors]
    if errors:
        raise RulesError(errors)
    rules = RuleSet(tuple(rule for file in files for rule in file.rules))
    return (rules if named else rules.in_shadow()), files


def rule_files(arguments: Iterable[str | Path]) -> list[Path]:
    """List the files that arguments stand for, each once; of a folder and a glob those with rules, by name.

    Raises UnreadableConfigError for an argument without files.
    """
    files: dict[Path, None] = {}
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and _may_hold_rules(file))
        elif path.exists() or not glob.has_magic(str(argument)):
            found = [path]
        else:
            matches = sorted(Path(match) for match in glob.glob(str(argument), recursive=True))  # noqa: PTH207
            found = [match for match in matches if _may_hold_rules(match)]
        if not found:
            raise UnreadableConfigError(str(argument), None, None, "", "no rule files", "name a file, folder or glob")
        files.update(dict.fromkeys(found))
    return list(files)


def read_rule_files(paths: Iterable[Path], executors: Collection[str] = ()) -> list[RuleFile]:
    """Read files as one set, in which a rule's name is unique; raises UnreadableConfigError only."""
    first: dict[str, str] = {}
    return [_read(path, executors, first) for path in paths]


def _read(path: Path, executors: Collection[str], first: dict[str, str]) -> RuleFile:
    try:
        file = load_yaml(path)
    except UnreadableConfigError:
        raise
    except ConfigError as error:
        return RuleFile(path, None, (), (error,))
    other = _other(file)
    if other is not None:
        return RuleFile(path, file, (), (file.refuse((other,), *_OTHER_FILES[other], at_key=True),))
    parser = RuleParser(file, executors)
    rules = parser.rules()
    errors = list(parser.errors)
    for name, key in parser.names:
        if name in first:
            errors.append(file.refuse(key, f"another rule is called {name}", f"it stands in {first[name]}"))
        else:
            first[name] = f"{file.file}:{file.value_mark(key).line}"
    errors.sort(key=lambda error: (error.line or 0, error.column or 0))
    return RuleFile(path, file, tuple(rules), tuple(errors), tuple(parser.key_paths))


def _may_hold_rules(path: Path) -> bool:
    try:
        return _other(load_yaml(path)) is None
    except ConfigError:
        return True  # so that it is read again, and reported


def _other(file: YamlFile) -> str | None:
    """Return the key that marks a file as another kind of file, None if it may hold rules."""
    return None if "groups" in file.data else next((key for key in _OTHER_FILES if key in file.data), None)
