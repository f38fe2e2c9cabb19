"""A collector whose kernels are not compiled says so at its start, with the remedy; one whose are says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import collector

from otel_llm.collector.plain_mode import notice, too_slow
from otel_llm.core.compiling import mode


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        (mode.CHOSEN, "unset OTEL_LLM_CORE"),
        (mode.ABSENT, "pip install 'otel-llm[collector]'"),
        ("numba cannot be imported (x)", "make numba usable"),
    ],
)
def test_what_is_reported_names_the_reason_and_the_remedy(reason: str, remedy: str) -> None:
    for reported in (notice(reason), too_slow(reason)):
        assert reported is not None
        assert f"plain mode ({reason}): " in reported
        assert remedy in reported
    assert (notice(None), too_slow(None)) == (None, None)


def test_a_plain_collector_says_so_at_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_LLM_CORE", "plain")
    with collector(tmp_path) as running:
        code, reported = running.stop()
    assert code == 0
    assert reported.count("warning: plain mode (OTEL_LLM_CORE=plain): ") == 1
    monkeypatch.setenv("OTEL_LLM_CORE", "compiled")
    with collector(tmp_path) as running:
        code, reported = running.stop()
    assert (code, "plain mode" in reported) == (0, False)
