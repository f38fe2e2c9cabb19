"""The code on the pages of servers runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

STACKS = Path(__file__).parents[3] / "docs" / "stacks"


@pytest.mark.parametrize("page", ["asgi", "wsgi", "flask", "django"])
def test_python_on_the_page_runs(page: str) -> None:
    text = (STACKS / f"{page}.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert code
    assert done.returncode == 0, done.stderr
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert "://" in target or (STACKS / target).exists(), target
