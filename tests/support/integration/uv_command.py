"""uv, which installs what pip does, in seconds: the environments of the other tests have filled its store."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.requirements import skip_without
from uv import find_uv_bin

UV = find_uv_bin()
ROOT = Path(__file__).parents[3]


def installed_or_skipped(done: subprocess.CompletedProcess[str]) -> None:
    """Fail if an installation failed; skip the test if only the package index could not be reached."""
    if done.returncode and "Failed to fetch" in done.stderr:
        skip_without("index", done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr


def uv(*arguments: str | Path, environment: dict[str, str] | None = None) -> None:
    """Run uv in the root of the checkout."""
    words: Sequence[str | Path] = [UV, *arguments]
    installed_or_skipped(subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, env=environment))
