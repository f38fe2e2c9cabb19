"""The table of stacks: nothing of a host's is imported before the host does, each can be switched off, none harms."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.logs import ours
from support.patience import WAIT_S

import otel_llm
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches
from otel_llm.instrumentation.setup import STACKS
from otel_llm.instrumentation.stacks.stack import StackInstrumentor

ROOT = Path(__file__).parents[2]
PACKAGES = sorted({package for package, _, _ in STACKS.values()})


def python(code: str, **environment: str) -> str:
    quiet = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": ""}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | quiet | environment, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.strip()


HOOKED = """
from openai.resources.chat.completions import Completions
print(hasattr(Completions.create, "__wrapped__") and "otel_llm" in Completions.create.__code__.co_filename)
"""


def test_instrumenting_imports_no_package_of_the_hosts() -> None:
    shown = f"print([name for name in {PACKAGES!r} if name in sys.modules])"
    assert python(f"import sys, otel_llm; otel_llm.instrument(); {shown}; otel_llm.uninstrument(); {shown}") == "[]\n[]"


@pytest.mark.parametrize(
    "first", ["import openai, otel_llm; otel_llm.instrument()", "import otel_llm; otel_llm.instrument()"]
)
def test_the_order_of_importing_and_instrumenting_does_not_matter(first: str) -> None:
    assert python(f"{first}\n{HOOKED}") == "True"


@pytest.mark.parametrize(
    ("off", "hooked"),
    [
        ("otel-llm-openai", False),
        ("flask , otel-llm-openai", False),
        ("*", False),
        ("openai", True),
        ("otel-llm-httpx", True),
    ],
)
def test_a_stack_is_switched_off_by_the_standard_variable(off: str, hooked: bool) -> None:
    code = "import otel_llm; otel_llm.instrument()\n" + HOOKED
    assert python(code, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=off) == str(hooked)


def test_what_was_switched_off_again_is_not_hooked_later() -> None:
    code = "import otel_llm; otel_llm.instrument(); otel_llm.uninstrument()\n" + HOOKED
    assert python(code + "otel_llm.instrument()\n" + HOOKED) == "False\nTrue"


def test_without_a_known_package_track_still_records() -> None:
    code = "import otel_llm; otel_llm.instrument(); print(type(otel_llm.track(iter('ab'))).__name__)"
    assert python(code, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="*") == "TrackedStream"


def attribute_of(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def test_table_and_entry_points_are_the_same() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert {name: attribute_of(place) for name, place in declared["opentelemetry_instrumentor"].items()} == {
        f"otel-llm-{stack}": attribute_of(f"{module}:{name}") for stack, (_, module, name) in STACKS.items()
    }


@pytest.mark.parametrize("stack", list(STACKS))
def test_an_instrumentor_is_what_the_table_says(stack: str) -> None:
    package, module, name = STACKS[stack]
    instrumentor = getattr(importlib.import_module(module), name)()
    assert all(each.startswith(package) for each in instrumentor.instrumentation_dependencies())
    assert instrumentor is getattr(importlib.import_module(module), name)()
    assert len({type(_made(other)) for other in STACKS}) == len(STACKS)


def _made(stack: str) -> Any:
    _, module, name = STACKS[stack]
    return getattr(importlib.import_module(module), name)()


# A stack of the test's own: a package that appears on the path, with two things to hook.

SOURCE = "class Client:\n    def ask(self):\n        return 1\n    def tell(self):\n        return 2\n"


class ToyInstrumentor(StackInstrumentor):
    stack: ClassVar[str] = "toy"
    package: ClassVar[str] = ""
    requires: ClassVar[tuple[str, ...]] = ()
    moved = False

    def _patch(self) -> Patches:
        toy = sys.modules[self.package]
        patches = Patches()
        patches.replace(toy.Client, "ask", lambda original: lambda self: original(self) + 100)
        patches.replace(toy.Client, "gone" if self.moved else "tell", lambda original: original)
        return patches


class ToyOfTheFuture(ToyInstrumentor):
    requires: ClassVar[tuple[str, ...]] = ("pytest >= 999",)
    _instance = None


class MovedToy(ToyInstrumentor):
    stack: ClassVar[str] = "moved toy"
    moved = True
    _instance = None


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a package that can be imported: another for each test, as an import hook stays."""
    name = f"otel_llm_toy_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(ToyInstrumentor, "package", name)
    yield name
    sys.modules.pop(name, None)
    for kind in (ToyInstrumentor, ToyOfTheFuture, MovedToy):
        if kind().is_instrumented_by_opentelemetry:
            kind().uninstrument()


def answers() -> tuple[int, int]:
    client = importlib.import_module(ToyInstrumentor.package).Client()
    return client.ask(), client.tell()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return ours(caplog)


def test_hooks_are_made_with_the_hosts_import_and_undone(toy: str) -> None:
    ToyInstrumentor().instrument(exporter=InMemorySpanExporter())
    assert toy not in sys.modules
    assert answers() == (101, 2)
    ToyInstrumentor().uninstrument()
    assert answers() == (1, 2)
    ToyInstrumentor().instrument(exporter=InMemorySpanExporter())
    assert answers() == (101, 2)


@pytest.mark.usefixtures("toy")
def test_a_hook_that_moved_is_one_warning_and_leaves_no_half(caplog: pytest.LogCaptureFixture) -> None:
    MovedToy().instrument(exporter=InMemorySpanExporter())
    assert answers() == (1, 2)
    assert len(warnings(caplog)) == 1
    MovedToy().uninstrument()
    assert runtime.running() is None


@pytest.mark.usefixtures("toy")
def test_another_version_is_one_warning_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    # As the zero-code agent does, which asks for the distribution's dependencies only.
    ToyOfTheFuture().instrument(exporter=InMemorySpanExporter(), skip_dep_check=True)
    assert answers() == (1, 2)
    [warning] = warnings(caplog)
    assert "pytest" in warning


@pytest.mark.usefixtures("toy")
def test_the_recorder_runs_until_the_last_stack_leaves() -> None:
    ToyInstrumentor().instrument(exporter=InMemorySpanExporter())
    first = runtime.running()
    MovedToy().instrument()
    assert runtime.running() is first is not None
    ToyInstrumentor().uninstrument()
    assert runtime.running() is first
    MovedToy().uninstrument()
    assert runtime.running() is None


@pytest.mark.usefixtures("toy")
def test_a_stack_that_leaves_does_not_stop_what_the_application_started() -> None:
    otel_llm.instrument(exporter=InMemorySpanExporter())
    try:
        started = runtime.running()
        ToyInstrumentor().instrument()
        ToyInstrumentor().uninstrument()
        assert runtime.running() is started is not None
    finally:
        otel_llm.uninstrument()
    assert runtime.running() is None


def test_one_stack_that_fails_costs_no_other(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(
        STACKS, "broken", ("pytest", "otel_llm.instrumentation.core.renamed_attributes", "NoSuchInstrumentor")
    )
    monkeypatch.setitem(STACKS, "rude", ("pytest", __name__, "Rude"))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    otel_llm.instrument(exporter=InMemorySpanExporter())
    try:
        assert _made("openai").is_instrumented_by_opentelemetry
        assert len(warnings(caplog)) == 2
    finally:
        otel_llm.uninstrument()


class Rude(ToyInstrumentor):
    _instance = None

    def _instrument(self, **kwargs: Any) -> None:
        raise RuntimeError("rude")
