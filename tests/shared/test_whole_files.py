from __future__ import annotations

from pathlib import Path

import pytest

from otel_llm.shared.whole_files import whole_lines


@pytest.mark.parametrize("size", range(1, 60))
def test_of_a_large_file_the_end_is_read(tmp_path: Path, size: int) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\nthree\nfour\ntor")
    found = whole_lines(path, size)
    assert found == ["one", "two", "three", "four"][len(["one", "two", "three", "four"]) - len(found) :]
    assert path.read_bytes().startswith(b"one\ntwo\nthree\nfour\n")
    if size >= 22:
        assert found == ["one", "two", "three", "four"]
    if size >= 4:
        assert path.read_bytes() == b"one\ntwo\nthree\nfour\n"
