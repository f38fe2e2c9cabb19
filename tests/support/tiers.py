"""Which tier a test belongs to, read from the source of the test and of the helpers that it reaches.

A test that reaches a call which starts a program is of the tier `system`; one that reaches `require("vllm")` needs what
the table of requirements calls `vllm`, and is of that requirement's tier. Reading stops at the product, but for the
classes in `STARTERS`: a test that makes a command of ours start programs says so itself (`@pytest.mark.system`), and
fails if it does not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from support.requirements import FIRST, REQUIREMENTS, SYSTEM, WORLD

TESTS = Path(__file__).parents[1]
STARTERS = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output"},
    "os": {"fork", "forkpty", "posix_spawn", "spawnv", "system"},
    "pty": {"fork", "spawn"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "multiprocessing": {"Process", "Pool", "get_context"},
    "otel_llm.bench.client.load_client": {"LoadClient"},
    "otel_llm.collector.receive.grpc_worker.parent": {"GrpcWorker"},
    "otel_llm.collector.receive.listeners": {"Listeners"},
    "otel_llm.collector.service": {"Service"},
}
"""What starts programs, by module: of the standard library, and of the product."""
ASKING = {"require", "skip_without", "found_program"}
"""The functions of `support.requirements` whose first argument names a requirement."""
PROGRAM, RANDOM = "program", "random"
"""What a test may need that is no requirement: it starts programs; it tries random examples."""


@dataclass
class Reached:
    """What one definition refers to: definitions of other places, and what it needs by itself."""

    needs: set[str] = field(default_factory=set)
    places: set[tuple[Path, str]] = field(default_factory=set)


class Source:
    """The top level of one module of the tests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imported: dict[str, tuple[str, str | None]] = {}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            self._add(node)

    def _add(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.definitions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for one in ast.walk(target):
                    if isinstance(one, ast.Name):
                        self.definitions.setdefault(one.id, []).append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.imported.update(imports_of(node))
        else:
            for inner in ast.iter_child_nodes(node):
                if isinstance(inner, ast.stmt):
                    self._add(inner)


def imports_of(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """Yield each name that an import binds, with the module and the name in it (None for the module itself)."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, (node.module or "", alias.name)
        elif alias.asname:
            yield alias.asname, (alias.name, None)
        else:
            yield alias.name.partition(".")[0], (alias.name.partition(".")[0], None)


@cache
def source(path: Path) -> Source:
    """Return a module of the tests, parsed once."""
    return Source(path)


@cache
def module_file(name: str) -> Path | None:
    """Return the file of a module of the tests, None for a module of the product or of a library."""
    place = TESTS.joinpath(*name.split("."))
    return next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)


def loaded(definition: ast.AST) -> list[ast.AST]:
    """Return the parts of a definition that run: annotations do not."""
    found = [definition]
    for part in found:  # it grows
        for name in part._fields:
            inner = None if name in {"annotation", "returns", "ctx"} else getattr(part, name, None)
            if isinstance(inner, ast.AST):
                found.append(inner)
            elif isinstance(inner, list):
                found += [one for one in inner if isinstance(one, ast.AST)]
    return found


def of_import(module: str, name: str | None, attribute: str | None) -> Reached:
    """Return what a use of an imported name refers to; `attribute` is what is read of it."""
    found = Reached()
    if name is not None and module_file(f"{module}.{name}") is not None:
        module, name = f"{module}.{name}", None
    if name is None:
        name = attribute
    if name is None:
        return found
    if (module, name) == ("support.examples", "examples"):
        found.needs.add(RANDOM)
    elif (file := module_file(module)) is not None:
        found.places.add((file, name))
    elif name in STARTERS.get(module, ()):
        found.needs.add(PROGRAM)
    return found


@cache
def reached(path: Path, name: str) -> Reached:
    """Return what one definition of a module refers to by itself."""
    found = Reached()
    module = source(path)
    local = dict(module.imported)
    if name in local and name not in module.definitions:
        return of_import(*local[name], None)
    parts = [part for definition in module.definitions.get(name, ()) for part in loaded(definition)]
    for part in parts:
        if isinstance(part, ast.Import | ast.ImportFrom):
            local.update(imports_of(part))
    used: set[tuple[str, str | None]] = set()
    for part in parts:
        if isinstance(part, ast.Name):
            used.add((part.id, None))
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            used.add((part.value.id, part.attr))
        elif isinstance(part, ast.Call):
            found.needs |= asked(part)
    for one, attribute in used:
        if one in module.definitions:
            found.places.add((path, one))
        elif one in local:
            more = of_import(*local[one], attribute)
            found.needs |= more.needs
            found.places |= more.places
    return found


def asked(call: ast.Call) -> set[str]:
    """Return the requirement that a call names."""
    function = getattr(call.func, "id", getattr(call.func, "attr", None))
    if function in ASKING and call.args and isinstance(call.args[0], ast.Constant):
        return {str(call.args[0].value)}
    return set()


def needs_of(places: Iterable[tuple[Path, str]]) -> set[str]:
    """Return what definitions need, themselves or by anything they reach."""
    needs: set[str] = set()
    waiting, seen = list(places), set()
    while waiting:
        place = waiting.pop()
        if place not in seen:
            seen.add(place)
            found = reached(*place)
            needs |= found.needs
            waiting += found.places
    return needs


def fixture_places(path: Path, names: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """Yield where the fixtures of a test are defined: in its module, or in a conftest.py above it."""
    folders = [folder for folder in path.parents if folder == TESTS or TESTS in folder.parents]
    files = [path, *(folder / "conftest.py" for folder in folders)]
    known = [file for file in files if file.is_file()]
    for name in names:
        for file in known:
            if name in source(file).definitions or name in source(file).imported:
                yield file, name
                break


@cache
def needs_of_test(path: Path, function: str, fixtures: frozenset[str]) -> frozenset[str]:
    """Return what a test needs: names of requirements, `program` and `random`."""
    return frozenset(needs_of([(path, function), *fixture_places(path, fixtures)]))


def tier_of(needs: Iterable[str], marks: Iterable[str]) -> str:
    """Return the tier of a test: the last of those of its needs and of its own marks."""
    found = {REQUIREMENTS[need].tier for need in needs if need in REQUIREMENTS}
    found |= {mark for mark in marks if mark in {SYSTEM, WORLD}}
    if PROGRAM in needs or "alone" in marks:
        found.add(SYSTEM)
    return WORLD if WORLD in found else SYSTEM if SYSTEM in found else FIRST
