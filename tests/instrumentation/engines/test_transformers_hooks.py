"""What the instrumentor of transformers does if transformers is not, not yet, or not as it knows it."""

from __future__ import annotations

import logging
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import wrapt
from support.logs import ours

from otel_llm.instrumentation.engines.transformers import HOOKS, TransformersInstrumentor
from otel_llm.instrumentation.process import runtime


@pytest.fixture
def instrumentor() -> Iterator[TransformersInstrumentor]:
    instrumentor = TransformersInstrumentor()
    instrumentor.instrument(skip_dep_check=True)
    yield instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()
    runtime.stop()


class Model:
    config = types.SimpleNamespace(name_or_path="tiny")

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


def module(name: str, **members: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(members)
    return made


@pytest.mark.usefixtures("instrumentor")
@pytest.mark.parametrize("name", sorted(HOOKS))
def test_a_hook_that_moved_is_one_warning_and_nothing_is_hooked(caplog: pytest.LogCaptureFixture, name: str) -> None:
    class Moved:
        def add_request(self) -> None: ...
        def submit(self) -> None: ...

    before = dict(vars(Moved))
    names = ("GenerationMixin", "ContinuousBatchingManager", "OutputRouter", "RequestState", "InferenceThread")
    made = module(name, **dict.fromkeys(names, Moved))
    with caplog.at_level(logging.WARNING, "otel_llm"):
        wrapt.notify_module_loaded(made)
    assert len(ours(caplog)) == 1
    assert name in caplog.text
    assert dict(vars(Moved)) == before


@pytest.mark.usefixtures("instrumentor")
def test_what_is_no_stream_passes_untouched() -> None:
    class Mixin(Model):
        pass

    wrapt.notify_module_loaded(module("transformers.generation.utils", GenerationMixin=Mixin))
    assert Mixin().generate(1, max_new_tokens=2) == ((1,), {"max_new_tokens": 2})


def test_it_is_undone_and_an_import_after_that_hooks_nothing(instrumentor: TransformersInstrumentor) -> None:
    class Mixin(Model):
        pass

    class Later(Model):
        pass

    wrapt.notify_module_loaded(module("transformers.generation.utils", GenerationMixin=Mixin))
    assert "generate" in vars(Mixin)
    instrumentor.uninstrument()
    assert "generate" not in vars(Mixin)
    instrumentor.instrument(skip_dep_check=True)
    instrumentor.uninstrument()
    wrapt.notify_module_loaded(module("transformers.generation.utils", GenerationMixin=Later))
    assert "generate" not in vars(Later)


def test_nothing_of_transformers_is_imported() -> None:
    code = (
        "import sys; from otel_llm.instrumentation.engines.transformers import TransformersInstrumentor as T\n"
        "T().instrument(skip_dep_check=True)\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('transformers', 'torch', 'pynvml')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
