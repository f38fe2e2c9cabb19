"""One tiny file a mistake, and beside it the very message it must give.

`python tests/rules/lint/test_rule_mistakes.py` writes the messages anew; read the difference before it is committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_llm.rules.lint.check import check_rules

FOLDER = Path(__file__).parent / "mistakes"
FILES = sorted(FOLDER.glob("*.yaml"))


def report(path: Path) -> str:
    return str(check_rules([path])).replace(str(path), path.name) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_message(path: Path) -> None:
    checked = check_rules([path])
    assert checked.exit_code() == 1
    assert checked.errors == 1
    renewal = "run `python tests/rules/lint/test_rule_mistakes.py` and read the difference"
    assert report(path) == path.with_suffix(".txt").read_text(encoding="utf-8"), renewal


def test_every_message_has_its_file() -> None:
    assert len(FILES) > 50
    assert {path.stem for path in FOLDER.glob("*.txt")} == {path.stem for path in FILES}


if __name__ == "__main__":
    for file in FILES:
        file.with_suffix(".txt").write_text(report(file), encoding="utf-8")
