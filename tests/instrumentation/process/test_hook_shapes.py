"""A hook has the shape of the function that it stands for: all hooks that are made here, and each kind of function."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_llm
from otel_llm.instrumentation.process.patches import Patches
from otel_llm.instrumentation.setup import STACKS

KINDS = (
    inspect.iscoroutinefunction,
    asyncio.iscoroutinefunction,
    inspect.isasyncgenfunction,
    inspect.isgeneratorfunction,
    inspect.isfunction,
)
GENERATORS: dict[str, Callable[..., Any]] = {
    "__iter__": inspect.isgeneratorfunction,
    "__aiter__": inspect.isasyncgenfunction,
}
"""Hooks that return the library's own generator, and so are no generator functions themselves."""
NAMES = ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__")


def shape(owner: Any, name: str) -> dict[str, object]:
    """Return what an application, or another library, can ask of a function."""
    function = getattr(owner, name)
    told: dict[str, object] = {kind.__name__: kind(function) for kind in KINDS if GENERATORS.get(name) is not kind}
    told |= {part: getattr(function, part, None) for part in NAMES}
    told["descriptor"] = type(inspect.getattr_static(owner, name)).__name__
    for look in (inspect.signature, inspect.getsource):
        try:
            told[look.__name__] = str(look(function))
        except (TypeError, OSError, ValueError) as error:
            told[look.__name__] = type(error).__name__
    told["pickled"] = pickled(function)
    ways: tuple[dict[str, Any], ...] = ({}, {"autospec": True})
    for way in ways:
        with mock.patch.object(owner, name, **way) as mocked:
            told[f"mocked {way}"] = type(mocked).__name__, inspect.iscoroutinefunction(mocked)
    bound = function.__get__(object(), owner) if inspect.isclass(owner) and inspect.isfunction(function) else function
    wrapped = functools.wraps(bound)(lambda *args, **kwargs: None)
    told["wrapped"] = wrapped.__qualname__, str(inspect.signature(wrapped))
    return told


def pickled(function: Any) -> object:
    """Return whether a function is pickled by its name, and found again."""
    try:
        return pickle.loads(pickle.dumps(function)) is function
    except Exception as error:  # noqa: BLE001  the bare one may refuse as well
        return type(error).__name__


@dataclass
class Hooked:
    """One function that was hooked, as it was before."""

    owner: Any
    name: str
    original: object
    shape: dict[str, object]


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Hooked]]:
    """Import what can be hooked here, and return what is hooked while the test runs."""
    made: list[Hooked] = []
    replace = Patches.replace

    def noted(self: Patches, owner: Any, name: str, replacement: Callable[[Any], Callable[..., Any]]) -> None:
        made.append(Hooked(owner, name, inspect.getattr_static(owner, name), shape(owner, name)))
        replace(self, owner, name, replacement)

    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    for package in ("urllib3.connection", *(package for package, _, _ in STACKS.values())):
        with suppress(ImportError):
            import_module(package)
    monkeypatch.setattr(Patches, "replace", noted)
    otel_llm.instrument(exporter=InMemorySpanExporter())
    yield made
    otel_llm.uninstrument()


@pytest.mark.filterwarnings("ignore")  # of litellm's import
def test_each_hook_looks_like_what_it_replaces(hooked: list[Hooked]) -> None:
    assert {"create", "request", "send", "endheaders"} <= {one.name for one in hooked}
    for one in hooked:
        ours = inspect.getattr_static(one.owner, one.name)
        assert ours is not one.original, one
        assert shape(one.owner, one.name) == one.shape, one
        assert inspect.unwrap(getattr(one.owner, one.name)) is inspect.unwrap(one.original)  # type: ignore[arg-type]
    otel_llm.uninstrument()
    lasting = [one for one in hooked if inspect.getattr_static(one.owner, one.name) is not one.original]
    assert {one.owner.__module__.partition(".")[0] for one in lasting} <= {"uvicorn", "gunicorn"}  # once a process


# Each kind of function, and hooks written as other kinds.


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return checked


class Library:
    """A library's class."""

    def plain(self, a: int, b: int = 2, *, c: int = 3) -> int:
        """Return a sum."""
        return a + b + c

    async def coroutine(self, a: int) -> int:
        """Return it later."""
        return a

    @decorated
    async def awaitable(self, a: int) -> int:
        """Return it later, by a function that is no coroutine function."""
        return a

    @staticmethod
    def static(a: int) -> int:
        """Return it."""
        return a

    @classmethod
    def of_class(cls, a: int) -> tuple[str, int]:
        """Return it, and the class."""
        return cls.__name__, a


class Heir(Library):
    """A subclass that overrides a hooked method and calls it."""

    async def coroutine(self, a: int) -> int:
        return await super().coroutine(a) + 100


def passing(original: Callable[..., Any]) -> Callable[..., Any]:
    def hook(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    return hook


def awaiting(original: Callable[..., Any]) -> Callable[..., Any]:
    async def hook(*args: Any, **kwargs: Any) -> Any:
        return await original(*args, **kwargs)

    return hook


@pytest.fixture(params=[passing, awaiting], ids=["a plain hook", "a coroutine function"])
def replacement(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def patches() -> Iterator[Patches]:
    made = Patches()
    yield made
    made.undo()


@pytest.mark.parametrize("name", ["coroutine", "awaitable"])
def test_what_is_awaited_keeps_its_kind_whatever_the_hook_is(name: str, replacement: Any, patches: Patches) -> None:
    bare = shape(Library, name)
    patches.replace(Library, name, replacement)
    assert shape(Library, name) == bare
    assert asyncio.run(getattr(Library(), name)(5)) == 5


@pytest.mark.parametrize("name", ["plain", "static", "of_class"])
def test_what_is_called_keeps_its_kind_and_its_binding(name: str, patches: Patches) -> None:
    bare = shape(Library, name)
    gave = getattr(Library(), name)(5), getattr(Heir, name)(*([Heir()] if name == "plain" else []), 5)
    patches.replace(Library, name, passing)
    assert shape(Library, name) == bare
    assert (getattr(Library(), name)(5), getattr(Heir, name)(*([Heir()] if name == "plain" else []), 5)) == gave


def test_a_subclass_that_overrides_calls_the_hook_by_super(replacement: Any, patches: Patches) -> None:
    patches.replace(Library, "coroutine", replacement)
    assert inspect.iscoroutinefunction(Heir.coroutine)
    assert asyncio.run(Heir().coroutine(5)) == 105


def test_a_function_with_two_names_stays_one_and_is_found_by_pickle(patches: Patches) -> None:
    # litellm.completion is litellm.main.completion
    names = ModuleType("names")
    names.fetched = fetched  # type: ignore[attr-defined]
    here = import_module(__name__)
    for module in (names, here):
        patches.replace(module, "fetched", passing)
    assert names.fetched is here.fetched
    assert names.fetched is not ORIGINAL
    assert pickled(names.fetched) is True
    patches.undo()
    assert names.fetched is here.fetched is ORIGINAL


def fetched(url: str) -> str:
    return url


ORIGINAL = fetched


def test_a_name_that_is_missing_undoes_what_was_replaced() -> None:
    patches = Patches()
    owner = SimpleNamespace(there=fetched)
    patches.replace(owner, "there", passing)
    with pytest.raises(AttributeError):
        patches.replace(owner, "missing", passing)
    assert owner.there is fetched


@pytest.mark.filterwarnings("ignore")
def test_litellm_is_one_of_them_if_it_is_here(hooked: list[Hooked]) -> None:
    assert (find_spec("litellm") is not None) == any(one.owner.__name__ == "litellm" for one in hooked)
