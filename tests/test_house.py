"""The house is in order: small folders, short modules, no circles, plain prose, and public names that keep working."""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "otel_llm"
MOST_MODULES = 15
MOST_LINES = 400
KEPT = "this name keeps working"
"""In the docstring of a module that only stands for one that moved."""

PRIVATE = re.compile(r"\b(whoever|nobody|of which|what (came|comes)|(is|are) told)\b", re.IGNORECASE)
"""Phrases that docstrings and comments do not use: they name no subject, or a vague one."""
NOT_YET_PLAIN = (
    "actions", "alerts", "audit", "backtest", "bench", "demo", "export", "instrumentation", "readers", "relay", "rules",
    "scheduling", "slo",
)  # fmt: skip
"""Folders of otel_llm whose prose another branch mends; empty it when that is merged."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
PATHS = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
OLD_NAMES = [name for name, source in SOURCES.items() if KEPT in source]


def imports_of(name: str) -> set[str]:
    """Return the modules of ours that a module imports anywhere, for types too."""
    found = set()
    for node in ast.walk(ast.parse(SOURCES[name])):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {one if one in SOURCES else node.module for one in inner}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return (found & SOURCES.keys()) - {name}


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that import each other around others: Tarjan's strongly connected components."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(one: str) -> None:
        numbers[one] = lowest[one] = len(numbers)
        stack.append(one)
        for other in imports[one]:
            if other not in numbers:
                visit(other)
                lowest[one] = min(lowest[one], lowest[other])
            elif other in stack:
                lowest[one] = min(lowest[one], numbers[other])
        if lowest[one] == numbers[one]:
            at = stack.index(one)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for one in imports:
        if one not in numbers:
            visit(one)
    return found


def test_the_search_for_circles_finds_them() -> None:
    around = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"f"}, "f": {"e", "d"}}
    assert sorted(map(sorted, circles(around))) == [["a", "b", "c"], ["e", "f"]]


def test_no_module_imports_itself_around_others_not_even_for_types() -> None:
    assert circles({name: imports_of(name) for name in SOURCES}) == []


def test_no_folder_has_more_modules_than_one_can_look_over() -> None:
    modules = [path for name, path in PATHS.items() if path.name != "__init__.py" and name not in OLD_NAMES]
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in modules)
    assert {folder: count for folder, count in folders.items() if count > MOST_MODULES} == {}


def test_no_module_is_longer_than_one_can_read() -> None:
    lines = {name: source.count("\n") for name, source in SOURCES.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


@pytest.mark.parametrize("name", OLD_NAMES)
def test_an_old_name_gives_what_is_at_the_new_one(name: str) -> None:
    (new,) = (node.module for node in ast.walk(ast.parse(SOURCES[name])) if isinstance(node, ast.ImportFrom))
    assert new is not None
    moved, there = importlib.import_module(name), importlib.import_module(new)
    public = {one for one, value in vars(there).items() if getattr(value, "__module__", None) == new and one[0] != "_"}
    assert public
    assert all(getattr(moved, one) is getattr(there, one) for one in public)


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the blocks of comments of a module, and the strings that are statements, each with its first line."""
    last = -1
    block: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 and block:
                yield last - len(block) + 1, " ".join(block)
                block = []
            last = token.start[0]
            block.append(token.string.lstrip("# "))
    if block:
        yield last - len(block) + 1, " ".join(block)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def private_phrases(source: str) -> list[tuple[int, str]]:
    """Return each private phrase in the prose of a module, also one that a line break divides, with its line."""
    found = ((line, PRIVATE.search(" ".join(text.split()))) for line, text in prose_of(source))
    return [(line, match[0]) for line, match in found if match is not None]


def test_the_search_for_private_phrases_finds_them() -> None:
    source = '"""One of\nwhich."""\nx = "whoever"  # Nobody is here\ny = 1\n"""What is told."""\n# what\n# comes\n'
    assert sorted(private_phrases(source)) == [(1, "of which"), (3, "Nobody"), (5, "is told"), (6, "what comes")]


def test_prose_uses_no_private_phrases() -> None:
    plain = [name for name, path in PATHS.items() if path.relative_to(PACKAGE).parts[0] not in NOT_YET_PLAIN]
    assert {name: found for name in plain if (found := private_phrases(SOURCES[name]))} == {}
