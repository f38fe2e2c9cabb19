from __future__ import annotations

from pathlib import Path

import pytest

from otel_llm.config.secret_files import exposed, read_headers
from otel_llm.config.yaml_file import ConfigError


def test_a_file_that_everybody_can_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("first-token-of-these")
    path.chmod(0o640)
    assert exposed(path) is None
    path.chmod(0o644)
    assert "chmod o-r" in (exposed(path) or "")
    assert exposed(tmp_path / "nowhere") is None


def test_headers(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_text("# to the backend\nAuthorization: Bearer a:b c\nx-scope:  t1 \n")
    assert read_headers(path) == (("authorization", "Bearer a:b c"), ("x-scope", "t1"))
    for wrong in ("no header", "a b: c", "name:", "x: \x07", ": x"):
        path.write_text(f"a: b\n{wrong}\n")
        with pytest.raises(ConfigError, match="not a header") as raised:
            read_headers(path)
        assert raised.value.line == 2
