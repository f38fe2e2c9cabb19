"""The quickstart from beginning to end, as its page says it: its own lines and snippets, in order, in one folder.

The machine is a fresh one: a network namespace, where the default ports are free, and an empty home. What differs from
the page: packages are installed, the collector's kernels are compiled, `collector/` is a link to the repository's, and
Prometheus scrapes every second in place of every 15.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import wait_until
from support.integration.interop_prometheus import program
from support.integration.quickstart import SHELL, Snippet, Terminal, prose, snippets, terminal

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
ELSEWHERE = {
    "pip install otel-llm": "test_wheel.py installs it into an empty environment",
    "pip install 'otel-llm[collector]'": "test_wheel.py",
    "make demo": "test_demo.py",
    "make demo-relay": "test_demo_relay.py",
}
"""Commands in the page's prose, and the tests that run them."""
REQUESTS = 4
"""Streams that the page's lines make: of the application three times, and of `track.py`."""

REPLY = 20
"""Words of a reply, `max_tokens` of the application."""


def run(at: Terminal, text: str) -> None:
    at.run(text)


def serve_model(at: Terminal, text: str) -> None:
    at.serve(text, r"http://\S+/v1")


def write_app(at: Terminal, text: str) -> None:
    (at.folder / "app.py").write_text(text, encoding="utf-8")


def write_track(at: Terminal, text: str) -> None:
    (at.folder / "track.py").write_text(text, encoding="utf-8")


def collect(at: Terminal, text: str) -> None:
    command, _, comment = text.partition("#")
    said = at.serve(command, "listening: .*\n")
    ports = re.findall(r":(\d+)", comment)
    assert ports == re.findall(r"127\.0\.0\.1:(\d+)", said)
    (address,) = re.findall(r"`(http://127\.0\.0\.1:\d+/)`", prose(PAGE))
    assert "<html" in at.fetch(address)
    assert "/metrics" in comment
    assert served(at) == 0


def served(at: Terminal) -> float:
    """Return the requests that the collector's metrics have."""
    (address,) = re.findall(r"`(http://127\.0\.0\.1:\d+/)`", prose(PAGE))
    found = re.findall(r"^otel_llm_requests_total{.*} (\S+)$", at.fetch(f"{address}metrics"), re.MULTILINE)
    return sum(map(float, found))


def export(at: Terminal, text: str) -> None:
    at.exported.append(text)


def run_app(at: Terminal, text: str) -> None:
    assert len(at.run(text).split()) == REPLY
    wait_until("it is recorded", lambda: served(at) == 1)


def run_track(at: Terminal, text: str) -> None:
    assert at.run(text) == "Any iterator of chunks.\n"
    wait_until("it is recorded", lambda: served(at) == 2)


def run_bare(at: Terminal, text: str) -> None:
    """Run the application without its line, from here on."""
    app = at.folder / "app.py"
    lines = app.read_text(encoding="utf-8").splitlines(keepends=True)
    without = [line for line in lines if "otel_llm" not in line]
    assert len(without) == len(lines) - 2
    app.write_text("".join(without), encoding="utf-8")
    assert len(at.run(text).split()) == REPLY
    wait_until("it is recorded", lambda: served(at) == 3)


def run_doctor(at: Terminal, text: str) -> None:
    report = at.run(text)
    assert f"openai 1 ({REPLY} tokens)" in report
    assert "problem" not in report
    wait_until("it is recorded", lambda: served(at) == REQUESTS)


def top(at: Terminal, text: str) -> None:
    at.watch(text, "in flight")


def scrape_file(at: Terminal, text: str) -> None:
    at.run(text)
    written = at.folder / "monitoring" / "prometheus.yml"
    config = written.read_text(encoding="utf-8")
    assert '"127.0.0.1:9464"' in config
    assert config.count(": 15s") == 2
    written.write_text(config.replace(": 15s", ": 1s"), encoding="utf-8")


def check_prometheus_rules(at: Terminal, text: str) -> None:
    assert re.search(r"SUCCESS: \d+ rules found", at.run(text))


def serve_prometheus(at: Terminal, text: str) -> None:
    at.serve(text, "Server is ready to receive web requests")


def ask_prometheus(at: Terminal, text: str) -> None:
    def answered() -> bool:
        values = re.findall(r'slo_class="chat"} => (\S+) @', at.run(text))
        return sum(map(float, values)) == REQUESTS

    wait_until("it was scraped", answered)


def write_rules(at: Terminal, text: str) -> None:
    (at.folder / "my-rules.yaml").write_text(text, encoding="utf-8")


def check_rules(at: Terminal, text: str) -> None:
    assert "1 rule in 1 file: 0 errors, 0 warnings" in at.run(text)


def backtest(at: Terminal, text: str) -> None:
    assert f" of {REQUESTS} streams" in at.run(text)


def audit(at: Terminal, text: str) -> None:
    assert f"{REQUESTS} of {REQUESTS} requests could be judged" in at.run(text)
    assert f"{REQUESTS} requests" in (at.folder / "report.html").read_text(encoding="utf-8")


STEPS: tuple[tuple[str, str, Callable[[Terminal, str], None]], ...] = (
    (SHELL, "python -m otel_llm.demo.paced_server", serve_model),
    ("python", "import openai", write_app),
    ("python", "import otel_llm", write_track),
    (SHELL, "otel-llm collect", collect),
    (SHELL, "export", export),
    (SHELL, "python app.py", run_app),
    (SHELL, "python track.py", run_track),
    (SHELL, "opentelemetry-instrument", run_bare),
    (SHELL, "otel-llm doctor", run_doctor),
    (SHELL, "otel-llm top", top),
    (SHELL, "mkdir", run),
    (SHELL, "sed", scrape_file),
    (SHELL, "otel-llm rules prometheus", run),
    (SHELL, "promtool check rules", check_prometheus_rules),
    (SHELL, "prometheus", serve_prometheus),
    (SHELL, "promtool query", ask_prometheus),
    ("yaml", "version: 1", write_rules),
    (SHELL, "otel-llm rules check", check_rules),
    (SHELL, "otel-llm rules backtest", backtest),
    (SHELL, "otel-llm audit", audit),
)
"""What is done with each snippet: its language, how it begins, and how it is run and checked."""


def matched(page: str) -> list[tuple[Callable[[Terminal, str], None], str]]:
    """Return what to do with each snippet; fail where the page has another one, one less, or another order."""
    found = snippets(page)
    for at, (snippet, (language, begins, _)) in enumerate(zip(found, STEPS, strict=False)):
        known = snippet.language == language and (snippet.text + " ").startswith((begins + " ", begins + "\n"))
        assert known, f"snippet {at} of the page is {snippet}, not {begins!r}"
    assert len(found) == len(STEPS), found[len(STEPS) :] or STEPS[len(found) :]
    return [(step, snippet.text) for snippet, (_, _, step) in zip(found, STEPS, strict=True)]


def test_every_line_of_the_page_works_in_order(tmp_path: Path) -> None:
    for needed in ("prometheus", "promtool"):
        program(needed)
    (tmp_path / "collector").symlink_to(ROOT / "collector")
    with terminal(tmp_path) as opened:
        for step, text in matched(PAGE):
            step(opened, text)


@pytest.mark.parametrize(
    "change",
    [
        lambda page: page.replace("    python track.py\n", ""),
        lambda page: page.replace("    python track.py\n", "    python track.py\n    otel-llm rules check rules/\n"),
        lambda page: page + "\n    otel-llm top\n",
        lambda page: page + "\n```sh\notel-llm top\n```\n",
        lambda page: page.replace("```yaml", "```yml"),
        lambda page: page.replace("    python app.py\n", "").replace("track.py\n", "track.py\n    python app.py\n"),
    ],
    ids=["a line less", "a line more", "a line at the end", "a block at the end", "language", "order"],
)
def test_a_page_that_says_something_else_fails(change: Callable[[str], str]) -> None:
    assert change(PAGE) != PAGE
    with pytest.raises(AssertionError):
        matched(change(PAGE))


def test_commands_in_the_prose_have_tests_of_their_own() -> None:
    programs = "otel-llm|opentelemetry-instrument|pip|python|make|promtool|prometheus|curl|docker"
    assert set(re.findall(rf"`((?:{programs}) [^`]+)`", prose(PAGE))) == ELSEWHERE.keys()


def test_snippets_are_found_in_order() -> None:
    page = "text\n\n    one --option  # why\n    two\n\n```python\nif x:\n    y\n```\n\n- item\n    three\n"
    assert snippets(page) == [
        Snippet(SHELL, "one --option  # why"),
        Snippet(SHELL, "two"),
        Snippet("python", "if x:\n    y\n"),
        Snippet(SHELL, "three"),
    ]
    assert prose(page).split() == ["text", "-", "item"]
