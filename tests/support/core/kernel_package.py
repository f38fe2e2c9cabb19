"""A copy of the package with kernels of a few lines, which compile in a second, and processes that use them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.patience import WAIT_S

import otel_llm

OURS = Path(otel_llm.__file__).parent
MACHINERY = ("__init__", "__main__", "kernel")

STEPS = """
STEP = 1
"""
TOTALS = """
from otel_llm.core.kernel import kernel
from otel_llm.core.steps import STEP


@kernel()
def stepped(values, place):
    return values[place] + STEP


@kernel("int64(int64[::1])")
def total(values):
    found = 0
    for place in range(len(values)):
        found += stepped(values, place)
    return found
"""
REPORT = """
import json, os, sys
import numpy as np

said = []
try:
    from otel_llm.core.compiling.mode import ModeError
    from otel_llm.core import kernel
    from otel_llm.core.compiling import warm
except ModeError as wrong:
    print(json.dumps({"wrong": str(wrong)}))
    sys.exit()
warm.prepare(said.append)
prepared = "otel_llm.core.totals" in sys.modules
from otel_llm.core.totals import total
found = {"said": said, "prepared": prepared, "plain": kernel.PLAIN, "total": int(total(np.arange(5)))}
if kernel.COMPILED:
    import numba
    from otel_llm.core.compiling.jit import kernel_cache
    kept = kernel_cache()
    found |= {
        "hits": sum(total.stats.cache_hits.values()),
        "misses": sum(total.stats.cache_misses.values()),
        "folder": None if kept.path is None else str(kept.path),
        "config": [numba.config.CACHE_DIR, numba.config.CACHE_LOCATOR_CLASSES],
    }
else:
    found["numba"] = "numba" in sys.modules
print(json.dumps(found))
"""


@dataclass(frozen=True)
class KernelPackage:
    """A copy of the package, and the folder that its cache is in."""

    root: Path
    cache: Path

    @property
    def core(self) -> Path:
        """Return the folder of the kernels."""
        return self.root / "otel_llm" / "core"

    @property
    def private(self) -> Path:
        """Return the folder of the user's caches, the place for kernels if the cache cannot be used."""
        return self.root / "private"

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a process that uses the copy."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "NUMBA_"))}
        ours = {"OTEL_LLM_CACHE_DIR": str(self.cache), "XDG_CACHE_HOME": str(self.private)}
        return kept | {"PYTHONPATH": str(self.root)} | ours | more

    def command(self, code: str = REPORT) -> list[str]:
        """Return the command of a process that reports what it did with the kernels."""
        return [sys.executable, "-c", code]

    def run(self, code: str = REPORT, *, before: tuple[str, ...] = (), **environment: str) -> dict[str, Any]:
        """Run a process and return what it reports."""
        done = subprocess.run(
            [*before, *self.command(code)],
            env=self.environment(**environment), cwd=self.root, capture_output=True, text=True, timeout=WAIT_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        reported: dict[str, Any] = json.loads(done.stdout)
        return reported

    def files(self) -> dict[str, int]:
        """Return the files in the cache, with the time of their last change."""
        return {str(path): path.stat().st_mtime_ns for path in sorted(self.cache.rglob("*")) if path.is_file()}

    def copy(self, folder: Path) -> KernelPackage:
        """Return a copy of this one, with what it has kept."""
        shutil.copytree(self.root, folder / "copy", ignore=shutil.ignore_patterns("__pycache__"))
        if self.cache.exists():
            shutil.copytree(self.cache, folder / "cache")
        return KernelPackage(folder / "copy", folder / "cache")


def kernel_package(folder: Path) -> KernelPackage:
    """Copy the package, without its kernels and with others."""
    package = KernelPackage(folder / "copy", folder / "cache")
    package.core.mkdir(parents=True)
    for name in ("__init__.py", "semconv.py"):
        shutil.copy2(OURS / name, package.root / "otel_llm")
    for name in MACHINERY:
        shutil.copy2(OURS / "core" / f"{name}.py", package.core)
    for name in ("core/compiling", "slo/live"):
        target = package.root / "otel_llm" / name
        shutil.copytree(OURS / name, target, ignore=shutil.ignore_patterns("__pycache__"))
    (package.core / "steps.py").write_text(STEPS, encoding="utf-8")
    (package.core / "totals.py").write_text(TOTALS, encoding="utf-8")
    return package
