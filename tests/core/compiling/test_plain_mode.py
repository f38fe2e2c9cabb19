"""`OTEL_LLM_CORE`: compiled if that can be, plain by choice or for want of numba, else an error with the remedy."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from support.core.kernel_package import REPORT, KernelPackage, kernel_package

from otel_llm.core.compiling.mode import ModeError, plain_because

numba = pytest.importorskip("numba", reason="no numba: kernels cannot be compiled")

OTHER_NUMPY = "raise ImportError('Numba needs NumPy 2.5 or less.\\nGot NumPy 2.6.')"
NO_NUMBA = "import sys\nsys.modules['numba'] = None\n"


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("OTEL_LLM_CORE", raising=False)
    return monkeypatch


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> KernelPackage:
    return kernel_package(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(("requested", "reason"), [("", None), ("compiled", None), ("plain", "OTEL_LLM_CORE=plain")])
def test_the_variable_decides(unset: pytest.MonkeyPatch, requested: str, reason: str | None) -> None:
    assert plain_because() is None
    unset.setenv("OTEL_LLM_CORE", requested)
    assert plain_because() == reason


@pytest.mark.parametrize("requested", ["Plain", "0", "compile", " plain"])
def test_another_value_is_an_error_that_names_those_that_may_be(unset: pytest.MonkeyPatch, requested: str) -> None:
    unset.setenv("OTEL_LLM_CORE", requested)
    with pytest.raises(ModeError) as wrong:
        plain_because()
    assert str(wrong.value) == f"OTEL_LLM_CORE is {requested!r}: it may be plain or compiled, or unset"


def test_without_numba_it_is_plain_unless_compiled_is_asked_for(unset: pytest.MonkeyPatch) -> None:
    unset.setitem(sys.modules, "numba", None)
    assert plain_because() == "numba is not installed"
    unset.setenv("OTEL_LLM_CORE", "compiled")
    with pytest.raises(ModeError, match=r"numba is not installed: pip install 'otel-llm\[collector\]'"):
        plain_because()


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("DISABLE_JIT", "NUMBA_DISABLE_JIT is set"),
        ("USING_SVML", "numba was imported without NUMBA_DISABLE_INTEL_SVML=1"),
    ],
)
def test_a_numba_that_would_not_compile_or_not_to_the_bit_is_none(
    unset: pytest.MonkeyPatch, setting: str, reason: str
) -> None:
    unset.setattr(numba.config, setting, 1)
    assert plain_because() == reason


def test_plain_kernels_answer_the_same_and_numba_is_not_imported(package: KernelPackage) -> None:
    found = package.run(OTEL_LLM_CORE="plain")
    assert found == {"said": [], "prepared": False, "plain": "OTEL_LLM_CORE=plain", "total": 15, "numba": False}
    assert package.run(NO_NUMBA + REPORT)["said"] == []
    assert not package.cache.exists()


def test_a_numba_that_cannot_be_imported_is_reported_in_a_line(
    package: KernelPackage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    broken = package.copy(tmp_path_factory.mktemp("broken"))
    (broken.root / "numba").mkdir()
    (broken.root / "numba" / "__init__.py").write_text(OTHER_NUMPY)
    found = broken.run()
    reason = "numba cannot be imported (Numba needs NumPy 2.5 or less. Got NumPy 2.6.)"
    assert (found["total"], found["plain"]) == (15, reason)
    assert found["said"] == [f"the kernels are not compiled: {reason}"]
    assert broken.run(OTEL_LLM_CORE="compiled") == {
        "wrong": f"OTEL_LLM_CORE is 'compiled', but {reason}: pip install 'otel-llm[collector]'"
    }


def total(values):  # type: ignore[no-untyped-def]
    rest = values[1:]
    return len(rest) + rest.sum()


def test_kernels_count_no_references() -> None:
    """`_nrt=False` is an option of numba that its documentation does not name: this notices when it goes."""
    from otel_llm.core.compiling import jit

    signature = "int64(int64[::1])"
    counting = numba.njit(total)
    counting.compile(signature)
    assert "NRT_" in counting.inspect_llvm(counting.signatures[0])
    made = jit.compiled(total, None)
    made.compile(signature)
    assert "NRT_" not in made.inspect_llvm(made.signatures[0])
    assert made(np.arange(4)) == 9


def test_an_error_in_a_kernel_is_reported_at_once_and_the_cache_is_left_alone() -> None:
    def wrong(values):  # type: ignore[no-untyped-def]
        return values.no_such_attribute

    from otel_llm.core.compiling import jit

    kept = jit.kernel_cache().path
    with pytest.raises(numba.core.errors.TypingError, match="no_such_attribute"):
        jit.compiled(wrong, "int64(int64[::1])")
    assert jit.kernel_cache().path == kept
