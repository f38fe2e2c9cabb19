"""The house is in order: small folders, short modules, no circles, no names of old paths, plain prose."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "otel_llm"
MOST_MODULES = 15
MOST_LINES = 600

PRIVATE = re.compile(r"\b(whoever|nobody|of which|what (came|comes)|(is|are) told)\b", re.IGNORECASE)
"""Phrases that docstrings and comments do not use: they name no subject, or a vague one."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
PATHS = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


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
    modules = [path for path in PATHS.values() if path.name != "__init__.py"]
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in modules)
    assert {folder: count for folder, count in folders.items() if count > MOST_MODULES} == {}


def test_no_module_is_longer_than_one_can_read() -> None:
    lines = {name: source.count("\n") for name, source in SOURCES.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def borrowed_names(sources: dict[str, str]) -> list[str]:
    """Return the imports that take a name from a module that only imports it, and all star imports.

    A package's `__init__.py` may list names in `__all__`: its path is then the public one.
    """
    defined: dict[str, set[str]] = {}
    for name, source in sources.items():
        own = defined.setdefault(name, set())
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
    packages = {name for name in defined if "__all__" in defined[name]}
    found = []
    for name, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.ImportFrom):
                continue
            module = node.module or ""
            for one in (alias.name for alias in node.names):
                borrowed = module in defined and module not in packages and one not in defined[module]
                if one == "*" or (borrowed and f"{module}.{one}" not in sources):
                    found.append(f"{name}: from {module} import {one}")
    return found


POSSESSIVE = re.compile(r"\(\?:[^()\n]*\)[*+?]\+")
"""A possessive repetition of a group. Before Python 3.11.5 (Debian 12 has 3.11.2) it may end in the middle of an item
that matches in part (CPython issue 106052)."""
SAFE = {r'(?:[^"\\]|\\.)*+', r'(?:\\.[^"\\]*+)*+'}
"""Those that give what the greedy repetition gives, also there: only the end of the text can cut their items."""


def test_a_repeated_group_is_not_possessive() -> None:
    assert POSSESSIVE.findall('re.compile(b"(?:ab.{2}cd)*+")') == ["(?:ab.{2}cd)*+"]
    found = {(name, group) for name, text in SOURCES.items() for group in POSSESSIVE.findall(text)}
    assert [one for one in found if one[1] not in SAFE] == []


def test_the_search_for_borrowed_names_finds_them() -> None:
    sources = {
        "a": "class A: ...",
        "b": "from a import A\nB = 1",
        "c": "from a import A\n__all__ = ['A']",
        "d": "from b import A, B\nfrom c import A\nfrom os import *\nfrom e import f",
        "e": "",
        "e.f": "",
    }
    assert borrowed_names(sources) == ["d: from b import A", "d: from os import *"]


def test_a_name_is_imported_from_the_module_that_defines_it() -> None:
    others = [
        path for folder in ("benchmarks", "collector", "examples", "tests") for path in (ROOT / folder).rglob("*.py")
    ]
    theirs = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(others)}
    assert borrowed_names(SOURCES | theirs) == []


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
    assert {name: found for name, source in SOURCES.items() if (found := private_phrases(source))} == {}


# What tests may touch.

TESTS = ROOT / "tests"
PRIVATE_NAME = re.compile(r"_[a-z]\w*")
OURS = re.compile(r"otel_llm\.|\w+$")
"""A name, or a path to one of ours."""
LIMIT = re.compile(r"_?[A-Z][A-Z0-9_]+")
PATCHES = {"setattr", "delattr", "getattr", "hasattr", "patch", "object"}
"""Functions that take the name of an attribute as a string."""
OWN = {"self", "cls", "super"}
INTERFACES = {"_exit", "_fields", "_replace", "_asdict"}
"""Names that are documented: of `os`, and of named tuples."""
THEIRS = {
    "tests/export/test_otlp_settings.py": "the standard exporters keep what they were set up with to themselves",
    "tests/export/test_wire_bytes.py": "a resource of the SDK takes only values that OTLP can carry",
    "tests/instrumentation/stacks/test_aiohttp_streams.py": "methods of the library that are hooked",
    "tests/instrumentation/stacks/test_litellm_streams.py": "whether a stream of the library is closed",
    "tests/instrumentation/stacks/test_lm15.py": "methods of the library that are hooked",
    "tests/instrumentation/test_track_recorded_calls.py": "the HTTP client below the SDK's",
}
"""Tests that touch what is private in a library, under a name that something private of ours has too, and why."""


def private_names() -> set[str]:
    """Return the names with one leading underscore that anything of ours is defined or assigned under."""
    found: set[str] = set()
    for node in chain.from_iterable(ast.walk(ast.parse(source)) for source in SOURCES.values()):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {name for name in found if PRIVATE_NAME.fullmatch(name)} - INTERFACES


def strings_of(call: ast.Call) -> list[str]:
    """Return the names that a call which patches or looks up an attribute takes: of a path into ours the last."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    texts = [one.value for one in call.args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    names = [text.removeprefix("otel_llm.").rpartition(".")[2] for text in texts if OURS.match(text)]
    return names if name in PATCHES else []


def is_own(node: ast.expr) -> bool:
    """Tell whether an attribute of this is the test's own: of `self`, `cls` or `super()`."""
    return getattr(node.func if isinstance(node, ast.Call) else node, "id", None) in OWN


def private_uses(source: str, private: set[str]) -> set[str]:
    """Return the private names of ours that a test reads, imports or patches; its own `self._x` is its own."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and not is_own(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("otel_llm"):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call):
            found |= set(strings_of(node))
    return found & private


def patched_limits(source: str) -> set[str]:
    """Return the constants and defaults that a test replaces."""
    found: set[str] = set()
    if not any(word in source for word in ("setattr", "patch", "defaults__")):
        return found  # most files: parsing takes the time here
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in {"__defaults__", "__kwdefaults__"}:
            found.add(node.attr)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"setattr", "patch", "object"}:
            found |= {name for name in strings_of(node) if LIMIT.fullmatch(name)}
    return found


def test_the_search_for_what_is_private_finds_it() -> None:
    private = {"_x", "_y", "_z"}
    assert private_uses("thing._x = self._y", private) == {"_x"}
    assert private_uses("from otel_llm.a import _x, y\nfrom b import _z", private) == {"_x"}
    assert private_uses('monkeypatch.setattr("otel_llm.a._y", 1)\ngetattr(a.b(), "_z")\nprint("_x")', private) == {
        "_y",
        "_z",
    }
    assert patched_limits('patch.setattr(module, "MOST", 1)\nsay("MOST_OTHERS")\nf.__defaults__ = ()') == {
        "MOST",
        "__defaults__",
    }


@pytest.fixture(scope="module")
def sources_of_tests() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("*.py"))}


def test_no_test_touches_what_is_private(sources_of_tests: dict[str, str]) -> None:
    private = private_names()
    uses = {path: private_uses(source, private) for path, source in sources_of_tests.items()}
    found = {path: names for path, names in uses.items() if names}
    assert {path: names for path, names in found.items() if path not in THEIRS} == {}
    assert THEIRS.keys() - found.keys() == set(), "they touch nothing of the kind any more"


def test_no_test_patches_a_limit(sources_of_tests: dict[str, str]) -> None:
    """A limit is an argument with a default: a test gives another."""
    found = {path: patched_limits(source) for path, source in sources_of_tests.items()}
    assert {path: names for path, names in found.items() if names} == {}
