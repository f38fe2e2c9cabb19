"""Find rule files and make one set of rules of them."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_llm.rules.files.rule_reader import RuleReader
from otel_llm.rules.files.ruleset import Rule, RuleSet
from otel_llm.rules.files.shipped import shipped_rules_dir
from otel_llm.rules.files.sniff import KINDS
from otel_llm.rules.files.yamlfile import ConfigError, UnreadableConfigError, YamlFile, load_yaml

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from otel_llm.rules.files.yamlfile import KeyPath

_SUFFIXES: Final = (".yaml", ".yml")
_OTHER_FILES: Final = {key: KINDS[key] for key in ("rule_files", "tests", "classes")}
"""By a top-level key the other files that lie beside rules: what they are, and what takes them."""


class RulesError(ConfigError):
    """Refuse rules: the first error's place and words, and all of them in `errors`."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        first = errors[0]
        super().__init__(first.file, first.line, first.column, first.key, first.message, first.advice)
        self.errors = tuple(errors)


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One file as it was read: its rules that are right, and all that is wrong with it; `file` None if not YAML.

    `places`: for each of the rules where it stands in the file.
    """

    path: Path
    file: YamlFile | None
    rules: tuple[Rule, ...]
    errors: tuple[ConfigError, ...]
    places: tuple[KeyPath, ...] = ()


def load_rules(arguments: Iterable[str | Path] = (), executors: Collection[str] = ()) -> RuleSet:
    """Load the rules of files, folders and globs; the shipped rules, all in shadow, where none is named.

    `executors`: the verbs besides `alert` that something here can do; for others `mode: enforce` is refused. Raises
    RulesError with everything that is wrong, UnreadableConfigError where a file cannot be read.
    """
    return load_with_files(arguments, executors)[0]


def load_with_files(
    arguments: Iterable[str | Path] = (), executors: Collection[str] = ()
) -> tuple[RuleSet, list[RuleFile]]:
    """Return also the files, for what is to be said of them; otherwise as `load_rules`."""
    named = list(arguments)
    files = read_rule_files(rule_files(named or [shipped_rules_dir()]), executors)
    errors = [error for file in files for error in file.errors]
    if errors:
        raise RulesError(errors)
    rules = RuleSet(tuple(rule for file in files for rule in file.rules))
    return (rules if named else rules.in_shadow()), files


def rule_files(arguments: Iterable[str | Path]) -> list[Path]:
    """List the files that arguments mean, each once; of a folder and a glob those with rules, by name.

    Raises UnreadableConfigError for an argument that means none.
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
    """Read files as one set, in which a rule's name stands once; raises UnreadableConfigError only."""
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
    reader = RuleReader(file, executors)
    rules = reader.rules()
    errors = list(reader.errors)
    for name, key in reader.names:
        if name in first:
            errors.append(file.refuse(key, f"another rule is called {name}", f"it stands in {first[name]}"))
        else:
            first[name] = f"{file.file}:{file.value_mark(key).line}"
    errors.sort(key=lambda error: (error.line or 0, error.column or 0))
    return RuleFile(path, file, tuple(rules), tuple(errors), tuple(reader.places))


def _may_hold_rules(path: Path) -> bool:
    try:
        return _other(load_yaml(path)) is None
    except ConfigError:
        return True  # so that it is read again, and reported


def _other(file: YamlFile) -> str | None:
    """Return the key by which a file is one of those that lie beside rules, None where it may hold rules."""
    return None if "groups" in file.data else next((key for key in _OTHER_FILES if key in file.data), None)
