"""Lines for a terminal without a reader, a slow one, one that goes away."""

from __future__ import annotations

import os
import threading

from support.patience import WAIT_S

from otel_llm.actions.sinks.background_writer import BackgroundWriter

PIPE_BYTES = 1 << 16


def test_lines_come_in_order() -> None:
    reported: list[str] = []
    aside = BackgroundWriter(reported.append)
    aside.start()
    for i in range(1000):
        aside(str(i))
    aside.stop(WAIT_S)
    assert reported == [str(i) for i in range(1000)]


def test_a_pipe_that_nobody_reads_holds_nobody_up() -> None:
    reading, writing = os.pipe()

    def write(line: str) -> None:
        os.write(writing, line.encode() + b"\n")

    aside = BackgroundWriter(write, most=100)
    aside.start()

    def speak() -> None:
        for _ in range(PIPE_BYTES // 50):
            aside("x" * 99)

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    speaker.join(WAIT_S)
    assert not speaker.is_alive()

    whole = b""

    def read() -> None:
        nonlocal whole
        while piece := os.read(reading, 4096):
            whole += piece

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    aside.stop(WAIT_S)
    os.close(writing)
    reader.join(WAIT_S)
    os.close(reading)
    lines = whole.decode().splitlines()
    reported = [line.split() for line in lines if line.startswith("...")]
    assert {line for line in lines if not line.startswith("...")} == {"x" * 99}
    assert len(lines) - len(reported) + sum(int(words[1]) for words in reported) == PIPE_BYTES // 50
    assert reported


def test_a_terminal_that_went_away_is_written_to_once() -> None:
    tries: list[str] = []

    def gone(line: str) -> None:
        tries.append(line)
        raise BrokenPipeError

    aside = BackgroundWriter(gone)
    aside.start()
    aside("a")
    for _ in range(10_000):
        if tries:
            break
        threading.Event().wait(0.001)
    aside.stop(WAIT_S)
    aside("b")
    assert tries == ["a"]
