"""`otel-llm doctor`: what it finds of real endpoints, and of real programs that it runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.collector.http_serving import serving
from support.commands import Collector, collector, environment, wait_until
from support.otlp_receiver import Answer, GrpcReceiver, HttpReceiver
from support.patience import WAIT_S
from support.ports import free_ports

ROOT = Path(__file__).parents[2]
SLOW_STACKS = ("openai", "anthropic", "httpx2", "aiohttp", "botocore", "aiobotocore", "lm15", "dspy")
ALL_OFF = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": ",".join(f"otel-llm-{stack}" for stack in SLOW_STACKS)}
"""Leaves out stacks that take seconds to import, if they do not matter."""

Json = dict[str, Any]


def doctor(
    *arguments: str, environ: Mapping[str, str] = {}, stdin: str = ""
) -> tuple[int, Json, subprocess.CompletedProcess[str]]:
    """Run `otel-llm doctor`; return its exit status, its report as JSON and all that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "otel_llm.cli.main", "doctor", "--format", "json", *arguments],
        env={**environment(), **ALL_OFF, **environ},
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    report = done.stderr[done.stderr.find("{\n") :] if "--" in arguments else done.stdout
    return done.returncode, json.loads(report), done


def found(report: Json, check: str) -> Json:
    [finding] = [finding for finding in report["findings"] if finding["check"] == check]
    assert isinstance(finding, dict)
    return finding


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with collector(tmp_path_factory.mktemp("doctor")) as started:
        yield started


def grpc_at(address: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}"}


def http_at(address: str) -> dict[str, str]:
    return grpc_at(address) | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}


# The endpoint.


def test_our_own_collector_takes_otlp_over_both_protocols(running: Collector) -> None:
    for environ in (grpc_at(running.grpc), http_at(running.http)):
        status, report, _ = doctor(environ=environ)
        assert (status, report["status"]) == (0, "warning")  # of the stacks that are left out
        assert found(report, "endpoint")["status"] == "ok"


@pytest.mark.parametrize("spoken", ["grpc", "http/protobuf"])
def test_the_other_protocols_port_is_reported_with_the_variables_to_set(running: Collector, spoken: str) -> None:
    environ = grpc_at(running.http) if spoken == "grpc" else http_at(running.grpc)
    status, report, _ = doctor(environ=environ)
    endpoint = found(report, "endpoint")
    assert (status, endpoint["status"]) == (1, "problem")
    other = "http/protobuf" if spoken == "grpc" else "grpc"
    address = running.http if spoken == "grpc" else running.grpc
    expected = f"OTEL_EXPORTER_OTLP_PROTOCOL={other} OTEL_EXPORTER_OTLP_ENDPOINT=http://{address}"
    assert endpoint["facts"]["instead"] == expected
    assert expected in endpoint["remedy"]


def test_tls_where_none_is_spoken_is_reported(running: Collector) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"https://{running.grpc}"}
    _, report, _ = doctor(environ=environ)
    assert found(report, "endpoint")["facts"]["instead"].endswith(f"OTEL_EXPORTER_OTLP_ENDPOINT=http://{running.grpc}")


def test_a_path_that_is_not_there_is_reported(running: Collector) -> None:
    environ = http_at(running.http) | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://{running.http}"}
    _, report, _ = doctor(environ=environ)
    assert found(report, "endpoint")["facts"]["answer"] == "not_found"
    assert found(report, "endpoint")["facts"]["instead"].endswith(f"http://{running.http}")


def test_nothing_that_listens() -> None:
    [port] = free_ports(1)
    for environ in (grpc_at(f"127.0.0.1:{port}"), http_at(f"127.0.0.1:{port}")):
        status, report, _ = doctor(environ=environ)
        assert (status, found(report, "endpoint")["facts"]["answer"]) == (1, "refused")


def test_every_one_of_several_collectors_is_asked(running: Collector) -> None:
    [port] = free_ports(1)
    several = f"http://{running.grpc},http://127.0.0.1:{port}"
    status, report, _ = doctor(environ={"OTEL_LLM_ENDPOINTS": several})
    asked = {one["facts"]["endpoint"]: one["status"] for one in report["findings"] if one["check"] == "endpoint"}
    assert (status, asked) == (1, {running.grpc: "ok", f"127.0.0.1:{port}": "problem"})
    assert "routing" not in {one["check"] for one in report["findings"]}


def test_an_exporter_of_the_application_that_sends_to_one_of_several_collectors_is_reported(running: Collector) -> None:
    several = f"http://{running.grpc},http://{running.grpc.replace('127.0.0.1', 'localhost')}"
    status, report, _ = doctor(environ={"OTEL_LLM_ENDPOINTS": several, **grpc_at(running.grpc)})
    assert (status, found(report, "routing")["status"]) == (0, "warning")
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in found(report, "routing")["remedy"]


def test_a_list_of_collectors_that_cannot_be_used_is_reported(running: Collector) -> None:
    _, report, _ = doctor(environ={"OTEL_LLM_ENDPOINTS": "http://a:1,", **grpc_at(running.grpc)})
    assert found(report, "settings")["text"].startswith("OTEL_LLM_ENDPOINTS: entry 2 is empty")
    assert found(report, "endpoint")["facts"]["endpoint"] == running.grpc


def test_a_host_that_accepts_and_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for environ in (grpc_at(address), http_at(address)):
            status, report, _ = doctor("--timeout", "0.5", environ=environ)
            assert (status, found(report, "endpoint")["status"]) == (1, "problem")
            assert found(report, "endpoint")["facts"]["answer"] in {"no_answer", "failed"}


def test_a_web_server_that_answers_200_speaks_no_otlp() -> None:
    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with serving(Page) as port:
        status, report, _ = doctor(environ=http_at(f"127.0.0.1:{port}"))
    assert (status, found(report, "endpoint")["facts"]["answer"]) == (1, "not_otlp")


def test_refused_credentials_are_reported() -> None:
    with GrpcReceiver() as over_grpc, HttpReceiver() as over_http:
        over_grpc.answers.append(Answer(grpc.StatusCode.UNAUTHENTICATED))
        over_http.answers.append(Answer(403))
        for receiver, protocol in ((over_grpc, "grpc"), (over_http, "http/protobuf")):
            environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
            status, report, _ = doctor(environ=environ)
            assert (status, found(report, "endpoint")["facts"]["answer"]) == (1, "denied")
            assert "OTEL_EXPORTER_OTLP_HEADERS" in found(report, "endpoint")["remedy"]


def test_a_clock_that_differs_from_the_collectors_is_reported() -> None:
    class Late(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response_only(200)
            self.send_header("Date", self.date_time_string(time.time() - 90))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with serving(Late) as port:
        _, report, _ = doctor(environ=http_at(f"127.0.0.1:{port}"))
    clock = found(report, "collector_clock")
    assert clock["status"] == "warning"
    assert clock["facts"]["ahead_s"] == pytest.approx(90, abs=5)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize(
    ("headers", "user"),
    [("authorization=Bearer%20SECRET%0A1", ""), ("Bearer SECRET", ""), ("a=b", "user:SECRET@")],
    ids=["value", "header", "endpoint"],
)
def test_no_credentials_are_printed(protocol: str, headers: str, user: str, running: Collector) -> None:
    # The other protocol's port, for the variables to set.
    address = running.http if protocol == "grpc" else running.grpc
    environ = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{user}{address}",
        "OTEL_EXPORTER_OTLP_HEADERS": headers,
    }
    _, report, done = doctor(environ=environ)
    assert address in found(report, "endpoint")["facts"]["endpoint"]
    assert "SECRET" not in done.stdout + done.stderr


# The environment.


def test_switches_sampling_limits_and_classes(running: Collector) -> None:
    environ = grpc_at(running.grpc) | {
        "OTEL_SDK_DISABLED": "true",
        "OTEL_TRACES_SAMPLER": "traceidratio",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "8",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "soon",
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*",
    }
    status, report, _ = doctor("--classes", "chat, no class", environ=environ)
    reported = {finding["check"]: finding["status"] for finding in report["findings"]}
    assert status == 1
    assert {name: reported[name] for name in ("switch", "stacks", "sampling", "limits", "settings", "classes")} == {
        "switch": "problem",
        "stacks": "problem",
        "sampling": "warning",
        "limits": "warning",
        "settings": "warning",
        "classes": "problem",
    }


def test_installed_stacks_are_hooked_and_those_left_out_are_named(running: Collector) -> None:
    _, report, _ = doctor(environ=grpc_at(running.grpc))
    httpx = found(report, "stack.httpx")
    assert httpx["status"] == "ok"
    assert httpx["facts"]["hooked"] is True
    assert httpx["facts"]["known"] == ["httpx >= 0.27, < 1"]
    assert found(report, "stack.openai")["status"] == "warning"


def test_a_version_that_is_not_known_is_a_problem(running: Collector, tmp_path: Path) -> None:
    # A package of another version in front of the real one, as an environment would have it.
    info = tmp_path / "httpx-0.20.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: httpx\nVersion: 0.20.0\n", encoding="utf-8")
    status, report, _ = doctor(environ=grpc_at(running.grpc) | {"PYTHONPATH": str(tmp_path)})
    httpx = found(report, "stack.httpx")
    assert (status, httpx["status"], httpx["facts"]["versions"]) == (1, "problem", {"httpx": "0.20.0"})
    assert "httpx >= 0.27, < 1" in httpx["text"]


def test_a_package_that_streams_unrecorded_is_named_with_what_to_do(running: Collector, tmp_path: Path) -> None:
    info = tmp_path / "xai_sdk-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: xai-sdk\nVersion: 1.2.3\n", encoding="utf-8")
    _, report, _ = doctor(environ=grpc_at(running.grpc) | {"PYTHONPATH": str(tmp_path)})
    assert "otel_llm.track" in found(report, "unrecorded.xai-sdk")["remedy"]


# A program.

PRELUDE = """
import os, signal, sys
sys.path.insert(0, "tests")
from support.sse_server import Gate, Reply, SseServer, chunk, whole, words
import httpx
def ask(url, model="m", path="chat/completions", **more):
    body = {"model": model, "messages": [], "stream": True, **more}
    with httpx.stream("POST", f"{url}/{path}", json=body) as reply:
        return [line for line in reply.iter_lines() if line]
server = SseServer({"m": whole(20), "hangs": Reply([*words(3), Gate()])}).__enter__()
url = server.url
"""


def program(code: str, *arguments: str, environ: Mapping[str, str], stdin: str = "") -> tuple[int, Json, str]:
    """Run a script under the doctor; return the exit status, the report and the script's standard output."""
    status, report, done = doctor(*arguments, "--", sys.executable, "-c", PRELUDE + code, environ=environ, stdin=stdin)
    return status, report, done.stdout


def test_a_program_keeps_its_streams_and_its_status(running: Collector) -> None:
    code = "print(len(ask(url)), sys.stdin.read()); sys.exit(7)"
    status, report, out = program(code, environ=grpc_at(running.grpc), stdin="typed")
    assert (status, out) == (7, "23 typed\n")
    assert report["command"]["exit_status"] == 7
    streams = found(report, "streams")
    assert streams["facts"] == {
        "streams": {"httpx": 1}, "tokens": {"httpx": 20}, "outcomes": {"completed": 1}, "processes": 1
    }  # fmt: skip
    assert found(report, "segments")["facts"]["dropped"] == 0


def test_a_program_that_is_fine_ends_with_0(running: Collector) -> None:
    status, report, _ = program("ask(url)", environ=grpc_at(running.grpc))
    assert (status, report["command"]["exit_status"]) == (0, 0)


def test_a_stream_that_passed_unrecorded_is_a_problem(running: Collector) -> None:
    status, report, _ = program("ask(url, path='answers')", environ=grpc_at(running.grpc))
    assert status == 1
    assert found(report, "unrecorded")["facts"] == {
        "what": "POST 127.0.0.1/v1/answers (text/event-stream) over httpx",
        "count": 1,
    }


def test_a_killed_program_still_reports(running: Collector) -> None:
    code = """
ask(url)
with httpx.stream("POST", f"{url}/chat/completions", json={"model": "hangs", "stream": True}) as reply:
    next(reply.iter_lines())
    os.kill(os.getpid(), signal.SIGKILL)
"""
    status, report, _ = program(code, environ=grpc_at(running.grpc))
    assert status == 128 + signal.SIGKILL
    assert found(report, "streams")["facts"]["streams"] == {"httpx": 2}
    assert found(report, "open_streams")["facts"] == {"streams": 1}


def test_children_report_for_themselves(running: Collector) -> None:
    code = """
import subprocess
ask(url)
child = os.fork()
if child == 0:
    ask(url)
    os._exit(0)
os.waitpid(child, 0)
again = "import httpx, sys; httpx.post(sys.argv[1], json={'model': 'm', 'stream': True}).read()"
subprocess.run([sys.executable, "-c", again, f"{url}/chat/completions"], check=True)
"""
    _, report, _ = program(code, environ=grpc_at(running.grpc))
    assert found(report, "streams")["facts"]["streams"] == {"httpx": 3}
    assert found(report, "streams")["facts"]["processes"] == 3


def test_a_program_that_instruments_itself_keeps_its_settings(running: Collector) -> None:
    code = """
import otel_llm
otel_llm.instrument(slo_class="chat", sampling="parent")
ask(url)
otel_llm.flush()
"""
    status, report, out = program(code, "--classes", "code", environ=grpc_at(running.grpc))
    assert (status, out) == (1, "")
    assert found(report, "classes.unknown")["facts"] == {"names": ["chat"]}
    assert found(report, "sampling.segments")["status"] == "warning"
    assert not [each for each in report["findings"] if each["check"] == "warned"]


def test_a_provider_without_processors_is_a_warning(running: Collector) -> None:
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
ask(url)
"""
    _, report, _ = program(code, environ=grpc_at(running.grpc))
    provider = found(report, "provider")
    assert (provider["status"], provider["facts"]["processors"]) == ("warning", [])


def test_a_program_under_the_zero_code_agent_reports(running: Collector) -> None:
    command = [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable, "-c"]
    _, report, _ = doctor("--", *command, PRELUDE + "ask(url)", environ=grpc_at(running.grpc))
    assert found(report, "streams")["facts"]["streams"] == {"httpx": 1}


def test_dropped_segments_are_a_problem() -> None:
    with GrpcReceiver() as receiver:
        receiver.answers += [Answer(grpc.StatusCode.INVALID_ARGUMENT)] * 20
        status, report, _ = program("ask(url)", environ={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint})
    assert status == 1
    segments = found(report, "segments")
    assert segments["status"] == "problem"
    assert segments["facts"]["dropped"] > 0


def test_a_program_without_a_recorder_is_a_problem(running: Collector) -> None:
    status, report, _ = doctor("--", sys.executable, "-I", "-c", "pass", environ=grpc_at(running.grpc))
    assert (status, found(report, "program")["status"]) == (1, "problem")


def test_signals_reach_the_program(running: Collector, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = f"""
import pathlib, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
pathlib.Path({str(ready)!r}).touch()
time.sleep(60)
"""
    command = [sys.executable, "-m", "otel_llm.cli.main", "doctor", "--", sys.executable, "-c", PRELUDE + code]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment() | ALL_OFF | grpc_at(running.grpc), stderr=subprocess.PIPE
    ) as process:
        wait_until("the program runs", ready.exists)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 5


def test_bad_usage_is_2(tmp_path: Path) -> None:
    for arguments in (["--", "no-such-program-here"], ["--format", "xml"], ["--timeout", "0"]):
        command = [sys.executable, "-m", "otel_llm.cli.main", "doctor", *arguments]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 2, done


def test_the_report_for_people_goes_to_a_file_where_asked(running: Collector, tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    command = [sys.executable, "-m", "otel_llm.cli.main", "doctor", "--output", str(path)]
    done = subprocess.run(
        command, env=os.environ | ALL_OFF | grpc_at(running.grpc), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = path.read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("ok ") and "takes OTLP" in line for line in text)
    assert any(line.strip().startswith("-> take otel-llm-openai out of") for line in text)


def test_nothing_beyond_the_base_install_is_imported() -> None:
    code = (
        "import otel_llm.cli.commands.doctor_command, sys;"
        " print({'numpy', 'pandas', 'yaml', 'rich', 'grpc'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
