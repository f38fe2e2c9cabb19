"""What the README and the package promise: its code runs, its files are there, its public names are these."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.anchors import anchors, leads
from support.patience import WAIT_S

import otel_llm

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*.md")))]
OWN = ("docs/audit.md", "docs/quickstart.md")
"""Pages whose code tests of their own run."""
STACKS = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/stacks/*.md"))]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize("page", [page for page in PAGES if page not in OWN])
def test_python_in_the_docs_runs(page: str, tmp_path: Path) -> None:
    code = "\n".join(blocks(page, "python"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    # Nobody listens there: telemetry that goes nowhere must not hurt the program.
    telemetry = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | telemetry, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [*PAGES, *STACKS, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    assert [target for target in targets if not leads(ROOT / page, target)] == []


def test_the_anchors_of_headings_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "# A `lost` one\n```\n# no heading\n```\n## [It](x.md), 2 ways: a-b\n## Twice\n## Twice\n"
    page.write_text(text, encoding="utf-8")
    assert anchors(text) == {"a-lost-one", "it-2-ways-a-b", "twice", "twice-1"}
    assert leads(page, "#twice-1")
    assert leads(page, "page.md#a-lost-one")
    assert not leads(page, "page.md#no-heading")
    assert not leads(page, "other.md")


def test_the_public_api_is_four_functions() -> None:
    assert otel_llm.__all__ == ["flush", "instrument", "track", "uninstrument"]
    assert {name for name in vars(otel_llm) if not name.startswith("_")} >= set(otel_llm.__all__)
    assert list(inspect.signature(otel_llm.instrument).parameters)[:3] == ["exporter", "tracer_provider", "slo_class"]
    assert next(iter(inspect.signature(otel_llm.track).parameters)) == "stream"
    for name in otel_llm.__all__:
        assert inspect.getdoc(getattr(otel_llm, name))


def test_importing_the_package_pulls_in_nothing_heavy() -> None:
    code = (
        "import sys, otel_llm; otel_llm.instrument; "
        "heavy = ('numba', 'numpy', 'pandas', 'grpc', 'pyarrow', 'openai', 'yaml', 'pydantic', 'requests'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_make_target_says_what_it_is() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony
    for target in phony.group(1).split():
        assert re.search(rf"^{target}:.*## \S", text, re.MULTILINE), target
