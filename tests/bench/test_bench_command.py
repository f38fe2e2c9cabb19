"""`otel-llm bench`: what it prints, keeps and refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.bench.loads import MODEL, counted
from support.bench.processes import children_of, started
from support.commands import environment, wait_until
from support.patience import WAIT_S
from support.sse_server import DONE, Json, Reply, SseServer, Wait, chunk, words

from otel_llm.bench.client.learning import OUTPUT_TOKENS
from otel_llm.cli.commands.audit_command import audit
from otel_llm.cli.commands.bench_command import bench

SHORT = ("--requests", "12", "--rate", "60", "--warmup", "0s")


@pytest.fixture(scope="module")
def server() -> Iterator[SseServer]:
    with SseServer({MODEL: counted(6), "slow": _slow}) as running:
        yield running


@pytest.fixture(scope="module")
def url(server: SseServer) -> str:
    return server.url


def _slow(request: Json) -> Reply:
    """Answer the questions before the run at once; reply to its requests slower than any test waits."""
    if request["max_tokens"] == OUTPUT_TOKENS:
        return counted(OUTPUT_TOKENS)
    return Reply([*words(2), Wait(30.0), *words(2), chunk(finish="stop"), DONE])


def _sent(server: SseServer, model: str) -> int:
    """Return how many requests of a run, not questions before it, a model has got."""
    return sum(one["model"] == model and one["max_tokens"] != OUTPUT_TOKENS for one in server.requests)


def _bench(url: str, *arguments: str | Path, model: str = MODEL) -> Result:
    return CliRunner().invoke(bench, [url, "--model", model, *map(str, arguments)])


def _audit(*arguments: str | Path) -> Result:
    return CliRunner().invoke(audit, list(map(str, arguments)))


def _result(done: Result) -> dict[str, Any]:
    assert done.stdout, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.system
def test_the_json_of_the_contract_and_a_recording_that_the_audit_reads(url: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = _bench(url, *SHORT, "--out", out, "--class", "voice", "--header", "x-team=not-kept", "--format", "json")
    found = _result(done)
    assert done.exit_code == (0 if found["valid"] else 1)
    assert set(found) >= {
        *("valid", "why", "send_lag_ms", "cpu", "requests", "errors", "token_basis", "prompt_tokens"),
        *("fluid_token_rate", "classes"),
    }
    assert found["requests"] == 12
    assert found["errors"] == {}
    assert found["token_basis"] == "exact"
    assert found["prompt_tokens"]["counted"] == 16
    assert found["loop"] == "open"
    assert (found["why"] is None) == found["valid"]
    # The audit of the folder says the same to the last digit; run.json is passed over.
    audited = _audit(out, "--format", "json")
    assert audited.exit_code == 0
    assert json.loads(audited.stdout)["classes"] == found["classes"]
    assert list(found["classes"]) == ["voice"]
    assert found["classes"]["voice"]["client"]["tokens"] == 12 * 6
    assert json.loads(audited.stdout)["skipped"] == 0
    kept = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert kept["settings"]["rate"] == "60"
    assert kept["settings"]["seed"] == 0
    assert (kept["settings"]["class"], kept["settings"]["slo"]) == ("voice", None)
    assert kept["settings"]["warmup"] == "0s"
    assert kept["settings"]["headers"] == ["x-team"]
    assert "not-kept" not in (out / "run.json").read_text(encoding="utf-8")
    assert kept["result"]["valid"] == found["valid"]
    assert kept["versions"]["python"]
    baseline = _audit(out, "--baseline", out)
    assert baseline.exit_code == 0, baseline.output


@pytest.mark.system
def test_the_table_says_first_whether_the_run_is_valid(url: str, tmp_path: Path) -> None:
    page = tmp_path / "load.html"
    done = _bench(url, *SHORT, "--html", page)
    first = done.stdout.splitlines()[0]
    assert first.startswith("valid") if done.exit_code == 0 else first.startswith("NOT VALID")
    for words_ in (
        "attainment",
        "TBT",
        "TPOT",
        "send lag",
        "fluid token rate",
        "tokens counted by",
        "shipped SLO classes",
    ):
        assert words_ in done.stdout
    text = page.read_text(encoding="utf-8")
    assert "The load" in text
    assert "send lag" in text


@pytest.mark.system
def test_a_warm_up_is_left_out_and_set_aside(url: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    load = ("--duration", "1s", "--rate", "20", "--arrivals", "constant", "--warmup", "500ms")
    found = _result(_bench(url, *load, "--out", out, "--format", "json"))
    assert found["requests"] == 10
    assert found["warm_up"] == {"requests": 10, "seconds": 0.5, "rule": "0.5 s"}
    assert json.loads(_audit(out, "--format", "json").stdout)["requests"] == 10
    assert json.loads(_audit(out / "warmup", "--format", "json").stdout)["requests"] == 10


@pytest.mark.system
def test_a_closed_loop_is_labelled_so(url: str) -> None:
    found = _result(_bench(url, "--concurrency", "2", "--requests", "8", "--warmup", "0", "--format", "json"))
    assert found["loop"] == "closed"
    assert found["send_lag_ms"] is None
    assert found["requests"] == 8


def test_completions(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "otel_llm.demo.paced_server", "--port", "0"],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        done = _bench(url, *SHORT, "--api", "completions", "--output", "8..12", "--format", "json", model="bursts")
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    found = _result(done)
    assert found["errors"] == {}
    assert 12 * 8 <= found["classes"]["chat"]["client"]["tokens"] <= 12 * 12
    assert abs(found["prompt_tokens"]["counted"] - 128) < 30  # its tokens are letters, and words differ in length


@pytest.mark.parametrize(
    ("arguments", "words_"),
    [
        (("--rate", "0"), "requests a second"),
        (("--rate", "1", "--concurrency", "2"), "exclude each other"),
        (("--duration", "0s"), "not longer than zero"),
        (("--duration", "5s", "--warmup", "10s"), "leaves nothing"),
        (("--arrivals", "uniform"), "poisson, constant or gamma"),
        (("--input", "9..3"), "lengths rise"),
        (("--trace", "missing.csv"), "missing.csv"),
        (("--class", "missing"), "no SLO class"),
        (("--html", "page.txt"), "ends with .html"),
        (("--header", "x"), "x-team=chat"),
        (("--speed", "0"), "no factor above zero"),
        (("--out", "missing/run"), "does not exist"),
        (("--api-key-file", "missing.txt"), "missing.txt"),
    ],
)
def test_usage_that_is_refused(arguments: tuple[str, ...], words_: str) -> None:
    found = CliRunner().invoke(bench, ["http://127.0.0.1:9", "--model", MODEL, *arguments])
    assert found.exit_code == 2
    assert words_ in found.output
    assert found.exception is None or isinstance(found.exception, SystemExit)


def test_a_folder_that_holds_something_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="ascii")
    found = CliRunner().invoke(bench, ["http://127.0.0.1:9", "--model", MODEL, "--out", str(tmp_path)])
    assert found.exit_code == 2
    assert "is not empty" in found.output


def test_nobody_there() -> None:
    found = CliRunner().invoke(bench, ["http://127.0.0.1:9", "--model", MODEL])
    assert found.exit_code == 2
    assert "nothing accepts a connection" in found.output


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_run_and_keeps_what_there_is(
    server: SseServer, tmp_path: Path, signum: signal.Signals
) -> None:
    out = tmp_path / "run"
    load = ("--model", "slow", "--rate", "20", "--duration", "1h", "--warmup", "0", "--format", "json")
    before = _sent(server, "slow")
    process = started("bench", server.url, *load, "--out", out)
    # In flight; none of them ends by itself.
    wait_until("requests of the run", lambda: process.poll() is not None or _sent(server, "slow") > before + 5)
    process.send_signal(signum)
    stdout, stderr = process.communicate(timeout=WAIT_S)
    found = json.loads(stdout or pytest.fail(stderr))
    assert found["requests"] > 0
    assert set(found["errors"]) == {"interrupted"}
    kept = json.loads(_audit(out, "--format", "json").stdout)
    assert kept["requests"] == found["requests"]
    assert process.returncode == (0 if found["valid"] else 1)


def test_ctrl_c_loses_no_run_that_is_over_and_not_yet_judged(server: SseServer, tmp_path: Path) -> None:
    load = ("--model", MODEL, "--rate", "50", "--requests", "5", "--warmup", "0", "--format", "json")
    before = _sent(server, MODEL)
    process = started("bench", server.url, *load, "--html", tmp_path / "load.html")
    wait_until("requests of the run", lambda: process.poll() is not None or _sent(server, MODEL) > before)
    while process.poll() is None and children_of(process):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)  # the workers are gone: it judges
    stdout, stderr = process.communicate(timeout=WAIT_S)
    assert json.loads(stdout or pytest.fail(stderr))["requests"] == 5


def test_a_full_disk_ends_the_run_and_says_so(url: str, tmp_path: Path) -> None:
    """A file that may not grow fails as a full disk does."""
    out = tmp_path / "run"
    load = ("--model", MODEL, "--rate", "50", "--duration", "1h", "--warmup", "0", "--format", "json")
    process = started("bench", url, *load, "--out", out, file_bytes=16_384)
    stdout, stderr = process.communicate(timeout=WAIT_S)
    found = json.loads(stdout or pytest.fail(stderr))
    assert process.returncode == 1
    assert not found["valid"]
    assert "could not be written: File too large" in found["why"]
    kept = json.loads(_audit(out, "--format", "json").stdout)
    assert 0 < kept["requests"] <= found["requests"]
    assert kept["skipped"] == 0
