"""The lines in a host's log: foreign values are cut and escaped, a kind of line comes once a minute."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import otel_llm
from otel_llm.export.host_log import OWN_CHARS, VALUE_CHARS, HostLog, shown, warning

ROOT = Path(otel_llm.__path__[0])
SECRET = "sk-live-123 "


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "otel_llm"]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("gpt-5", "gpt-5"),
        ("模型", "模型"),
        ("a\nWARNING forged", "a\\u{a}WARNING forged"),
        ("\x1b[31mred\x9b1m", "\\u{1b}[31mred\\u{9b}1m"),
        ("\u202eabc\ud800", "\\u{202e}abc\\u{d800}"),
        ("%s %d", "%s %d"),
        (7, "7"),
        (None, "None"),
        (b"\x9b", "b'\\x9b'"),
        (["x" * 100], "['" + "x" * (VALUE_CHARS - 3) + "…"),
    ],
)
def test_a_foreign_value_stands_in_a_line_as_text(value: object, line: str, caplog: pytest.LogCaptureFixture) -> None:
    warning("a model: %s", value)
    assert lines(caplog) == [f"a model: {line}"]


@pytest.mark.parametrize("length", [VALUE_CHARS - 1, VALUE_CHARS, VALUE_CHARS + 1, 10**6])
def test_a_foreign_value_is_cut(length: int, caplog: pytest.LogCaptureFixture) -> None:
    warning("%s", "x" * length)
    assert lines(caplog) == ["x" * length if length <= VALUE_CHARS else "x" * (VALUE_CHARS - 1) + "…"]


def test_a_text_of_ours_may_be_longer(caplog: pytest.LogCaptureFixture) -> None:
    warning("%s %r", shown("x" * 1000, OWN_CHARS), shown("y"))
    assert lines(caplog) == ["x" * (OWN_CHARS - 1) + "… 'y'"]


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def fails(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError(SECRET * 5000), "ValueError: " + (SECRET * 6)[: VALUE_CHARS - 1] + "…"),
        (KeyError("\x9b\n"), "KeyError: '\\x9b\\n'"),
        (UnreadableError(), "UnreadableError: "),
    ],
    ids=["long", "controls", "unreadable"],
)
def test_an_exception_is_its_class_its_beginning_and_its_places(
    error: Exception, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(type(error)) as raised:
        fails(error)
    warning("a bug: %s", raised.value)
    [line] = lines(caplog)
    begins = f"a bug: {text} (test_host_log.py:"
    assert line.startswith(begins)
    assert re.fullmatch(r"\d+ \w+, test_host_log\.py:\d+ fails\)", line.removeprefix(begins))
    assert caplog.records[0].exc_info is None  # a traceback would have the text once more


def test_a_kind_of_line_comes_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [100.0]
    log = HostLog(lambda: now_s[0])
    reported = []
    for second in range(125):
        now_s[0] = 100.0 + second
        reported.append(log.warning("model %s", second))
        assert log.warning("another kind") == reported[-1]
    assert [second for second, one in enumerate(reported) if one] == [0, 60, 120]
    assert [line for line in lines(caplog) if line.startswith("model")] == ["model 0", "model 60", "model 120"]


def test_a_handler_of_the_host_that_fails_harms_nobody() -> None:
    def fails(record: logging.LogRecord) -> bool:
        raise RuntimeError("a bug of the host")

    log = logging.getLogger("otel_llm")
    log.addFilter(fails)
    try:
        warning("a line")
    finally:
        log.removeFilter(fails)


WRITES = "debug|info|warn|warning|error|exception|critical|log"


def test_nothing_else_of_the_applications_side_writes_into_the_log() -> None:
    found = []
    for path in [path for folder in ("instrumentation", "export") for path in (ROOT / folder).rglob("*.py")]:
        source = path.read_text()
        loggers = re.findall(r"(\w+)(?:: Final)? = logging\.getLogger\(", source)
        calls = "|".join(("logging", r"getLogger\(.*?\)", *map(re.escape, loggers)))
        if path.name != "host_log.py" and re.search(rf"\b(?:{calls})\.(?:{WRITES})\(", source):
            found.append(path.name)
    assert found == []
