"""What becomes of a recorder when its process forks or ends, and how it gets into one."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from support.hosts.serving import SilentEndpoint
from support.hosts.told import streams, told
from support.otlp_receiver import GrpcReceiver, HttpReceiver
from support.patience import WAIT_S
from support.ports import free_ports
from support.sse_server import DONE, Gate, Reply, SseServer, chunk, whole, words

from otel_llm import semconv
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.parse.callback_reader import CallbackReader
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.request import request_builder

ROOT = Path(__file__).parents[3]

PRELUDE = """
import os, sys, openai, otel_llm
url = sys.argv[1]
client = openai.OpenAI(api_key="none", base_url=url, max_retries=0)
def ask(model):
    return client.chat.completions.create(model=model, messages=[], stream=True)
"""


def python(code: str, *arguments: str, environment: Mapping[str, str], command: tuple[str, ...] = ()) -> str:
    """Run code in a fresh interpreter; return what it printed."""
    return run([*command, sys.executable, "-c", code, *arguments], environment)


def run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a command to its good end; return what it printed."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def receivers(protocol: str) -> GrpcReceiver | HttpReceiver:
    return GrpcReceiver() if protocol == "grpc" else HttpReceiver()


def otlp(protocol: str, receiver: GrpcReceiver | HttpReceiver) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_SERVICE_NAME": "forks",
    }


FORK = (
    PRELUDE
    + """
otel_llm.instrument()
list(ask("before"))
open_stream = ask("across")
next(open_stream)
assert otel_llm.flush(30)          # a connection is open, and segments of "across" are on their way
open_segment = ask("queued")
child = os.fork()
if child == 0:
    next(open_stream)              # the child's copy: what becomes of the stream is the parent's to say
    open_stream.close()
    list(ask("child"))
    assert otel_llm.flush(30)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
open_segment.close()
list(ask("after"))
"""
)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_forked_child_starts_clean(protocol: str) -> None:
    gate = Gate()
    replies: dict[str, Any] = {name: whole(3) for name in ("before", "child", "after", "queued")}
    replies["across"] = Reply([*words(2), gate])
    with SseServer(replies) as server, receivers(protocol) as receiver:
        python(FORK, server.url, environment=otlp(protocol, receiver))
        gate.open()
        assert told(receiver.spans()) == [
            ("across", "abandoned", 1),
            ("after", "completed", 3),
            ("before", "completed", 3),
            ("child", "completed", 3),
            ("queued", "cancelled", 0),
        ]
        senders: dict[str, set[str]] = {}
        for message in receiver.messages:
            for group in message.resource_spans:
                said = {pair.key: pair.value.string_value for pair in group.resource.attributes}
                for span in group.scope_spans[0].spans:
                    for pair in span.attributes:
                        if pair.key == semconv.GEN_AI_REQUEST_MODEL:
                            senders.setdefault(pair.value.string_value, set()).add(said[semconv.SERVICE_INSTANCE_ID])
        assert senders["child"].isdisjoint(senders["after"])
        assert senders["before"] == senders["after"]


AT_EXIT = (
    PRELUDE
    + """
otel_llm.instrument()
list(ask("whole"))
stream = ask("open")
for _ in range(2):
    next(stream)
"""
)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_end_of_the_process_loses_nothing(protocol: str) -> None:
    gate = Gate()
    with (
        SseServer({"whole": whole(150), "open": Reply([*words(2), gate, chunk(finish="stop"), DONE])}) as server,
        receivers(protocol) as receiver,
    ):
        python(AT_EXIT, server.url, environment=otlp(protocol, receiver))
        gate.open()
        assert told(receiver.spans()) == [("open", "abandoned", 2), ("whole", "completed", 150)]


def test_the_end_of_the_process_does_not_wait_for_an_endpoint_that_is_not_there() -> None:
    with SseServer({"whole": whole(3)}) as server:
        code = PRELUDE + (
            "import atexit\n"
            "from otel_llm.export.records import Segment\n"
            "from otel_llm.instrumentation.process import runtime\n"
            "cut = []\n"
            # Called last, since it is registered first; all is settled then: given up, not waited for.
            "atexit.register(lambda: print(outbox.flush(0), outbox.dropped == segments() > 1))\n"
            "segments = lambda: sum(isinstance(record, Segment) for record in cut)\n"
            "otel_llm.instrument()\n"
            "outbox = runtime.running().outbox\n"
            "put = outbox.put\n"
            "outbox.put = lambda records, **more: (cut.extend(records), put(records, **more))\n"
            "list(ask('whole'))\n"
        )
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "GRPC_VERBOSITY": "NONE"}
        # As many segments as the reply was cut into: a slow one is cut more often.
        assert python(code, server.url, environment=environment).split() == ["True", "True"]


LEFT_BEHIND = (
    PRELUDE
    + """
otel_llm.instrument()
for _ in range(3):
    list(ask("whole"))
"""
)


@pytest.mark.parametrize("end", ["", "otel_llm.uninstrument()"], ids=["exit", "uninstrument"])
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_process_says_in_one_line_what_its_endpoint_did_not_get(protocol: str, end: str) -> None:
    with SseServer({"whole": whole(3)}) as server, SilentEndpoint() as endpoint:
        environment = {
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint.endpoint.replace("//", "//user:SECRET@"),
            "OTEL_EXPORTER_OTLP_TIMEOUT": str(WAIT_S),
            "OTEL_LLM_EXIT_TIMEOUT": "0.5",
            "GRPC_VERBOSITY": "NONE",
        }
        done = subprocess.run(
            [sys.executable, "-c", LEFT_BEHIND + end, server.url],
            env={**os.environ, **environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        where = endpoint.endpoint if protocol == "http/protobuf" else endpoint.endpoint.removeprefix("http://")
    line = done.stderr.splitlines()[-1]
    assert "SECRET" not in done.stderr
    assert re.fullmatch(
        rf"otel_llm: \d+ segments of 3 streams were not delivered to {re.escape(where)}\S* over {protocol}, "
        r"since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \(.*\)",
        line,
    )


class Stuck(SpanExporter):
    """An exporter that a test holds up."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.entered.set()
        assert self.open.wait(WAIT_S)
        return SpanExportResult.SUCCESS


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    exporter = Stuck()
    yield exporter
    exporter.open.set()


def record(running: runtime.Runtime, streams: int) -> None:
    for _ in range(streams):
        now = context.get_current()
        request = request_builder.request(running, now, operation="chat", model="m", gen_ai={}, ours={})
        recording = Recording(running, request, CallbackReader(None, None, "exact"))
        recording.announce(now)
        recording.exhausted()


def test_what_is_lost_is_said_once_a_stop(
    stuck: Stuck, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_LLM_EXIT_TIMEOUT", "0.05")
    running = runtime.Runtime(stuck)
    record(running, 2)
    assert stuck.entered.wait(WAIT_S)
    running.complete()  # a server stops, and its process goes on
    assert capsys.readouterr().err == ""
    running.complete(exiting=True)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("otel_llm: 4 segments of 2 streams were not delivered to Stuck, since 2")
    running.leave()
    assert capsys.readouterr().err == ""


def test_nothing_is_said_if_all_is_delivered(stuck: Stuck, capsys: pytest.CaptureFixture[str]) -> None:
    stuck.open.set()
    running = runtime.Runtime(stuck)
    record(running, 2)
    assert running.flush(WAIT_S)
    running.leave()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("stream", [None, io.StringIO()], ids=["none", "closed"])
def test_a_process_without_standard_error_ends_all_the_same(
    stream: io.StringIO | None, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_LLM_EXIT_TIMEOUT", "0.05")
    running = runtime.Runtime(stuck)
    record(running, 1)
    assert stuck.entered.wait(WAIT_S)
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    assert not running.stop()


SEVERAL = """
import otel_llm
for _ in range(40):
    list(otel_llm.track(iter("abcde"), model="m"))
otel_llm.uninstrument()
"""


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_several_collectors_get_whole_streams_and_their_request_spans(protocol: str) -> None:
    [nothing] = free_ports(1)
    with receivers(protocol) as first, receivers(protocol) as second:
        several = ",".join((first.endpoint, f"http://127.0.0.1:{nothing}", second.endpoint))
        environment = {**otlp(protocol, first), "OTEL_LLM_ENDPOINTS": several, "GRPC_VERBOSITY": "NONE"}
        python(SEVERAL, environment=environment)
        traces = [{span.trace_id for span in one.spans()} for one in (first, second)]
        assert traces[0].isdisjoint(traces[1])
        for one, ids in zip((first, second), traces, strict=True):
            spans = one.spans()
            assert 0 < len(ids) < 40
            assert len([span for span in spans if span.name == "chat m"]) == len(ids)
            assert told(spans) == [("m", "completed", 5)] * len(ids)


def test_the_handlers_of_one_stop_share_their_time() -> None:
    """uvicorn's shutdown, the application's and Python's exit may each wait for an endpoint that never answers."""
    code = PRELUDE + (
        "import time\n"
        "from otel_llm.instrumentation.process import runtime\n"
        "otel_llm.instrument()\n"
        "list(ask('whole'))\n"
        "running = runtime.running()\n"
        "running.complete()\n"
        "left = [running.stop_time_left_s()]\n"
        "list(ask('whole'))\n"  # the server goes on: what comes next is another stop
        "left.append(running.stop_time_left_s())\n"
        "running.clock_ns = lambda: time.monotonic_ns() + 11 * 10**9\n"  # and so is what comes much later
        "left.append(running.stop_time_left_s())\n"
        "print(*left)\n"
    )
    with SseServer({"whole": whole(3)}) as server, SilentEndpoint() as endpoint:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint.endpoint, "GRPC_VERBOSITY": "NONE"}
        first, second, third = map(float, python(code, server.url, environment=environment).split())
        assert first == 0.0
        assert second > 0.0
        assert third > 0.0


BUSY_EXECUTOR = """
import asyncio, os, sys, time
from otel_llm.instrumentation.process import graceful_stop
class Recorder:
    exit_s = 600.0
    def complete(self, *, exiting=False, within_s=None):
        print("settled", exiting)
    def leave_in(self, seconds):
        pass
async def main():
    loop = asyncio.get_running_loop()
    jobs = [loop.run_in_executor(None, time.sleep, 3600) for _ in range(64)]
    await graceful_stop.completed(Recorder(), exiting=True)
asyncio.new_event_loop().run_until_complete(main())
sys.stdout.flush()
os._exit(0)
"""


def test_a_stop_does_not_wait_for_the_executor_of_the_loop() -> None:
    assert python(BUSY_EXECUTOR, environment={}) == "settled True\n"


PROVIDER_AT_EXIT = (
    PRELUDE
    + """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
otel_llm.instrument()
list(ask("whole"))                 # recorded, and the end of the process prepared for, before there is a provider
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
stream = ask("whole")
next(stream)
"""
)


def test_request_spans_end_before_the_applications_provider_does() -> None:
    with SseServer({"whole": whole(3)}) as server, HttpReceiver() as receiver:
        printed = python(PROVIDER_AT_EXIT, server.url, environment=otlp("http/protobuf", receiver))
        span = json.loads(printed)
        assert span["attributes"][semconv.OUTCOME] == "abandoned"
        parents = {f"0x{parent.hex()}" for _, parent in streams(receiver.spans())}
        assert span["context"]["span_id"] in parents


POOL = (
    PRELUDE
    + """
import multiprocessing
otel_llm.instrument()              # in a spawned child, too: it imports this script
def work(model):
    list(ask(model))
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    process = context.Process(target=work, args=("child",))
    process.start()
    process.join()
    with context.Pool(2) as pool:
        pool.map(work, ["pooled"] * 4)
        pool.close()
        pool.join()
    sys.exit(process.exitcode)
"""
)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_multiprocessing_sends_its_last_segments(method: str, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(POOL, encoding="utf-8")
    with SseServer({"child": whole(3), "pooled": whole(3)}) as server, HttpReceiver() as receiver:
        environment = otlp("http/protobuf", receiver)
        run([sys.executable, str(script), server.url, method], environment)
        assert told(receiver.spans()) == [("child", "completed", 3), *[("pooled", "completed", 3)] * 4]


LOOPS = """
import asyncio, sys, threading, openai, otel_llm
otel_llm.instrument()
async def read(model):
    async with openai.AsyncOpenAI(api_key="none", base_url=sys.argv[1], max_retries=0) as client:
        async for _ in await client.chat.completions.create(model=model, messages=[], stream=True):
            pass
"""
TRIO = LOOPS + "import trio; trio.run(read, 'trio')"
NESTED = (
    LOOPS
    + """
import nest_asyncio
nest_asyncio.apply()
async def outer():
    asyncio.run(read("nested"))    # a loop inside of a loop that runs
    thread = threading.Thread(target=lambda: asyncio.run(read("threaded")))
    thread.start()
    await asyncio.to_thread(thread.join)
    await read("outer")
asyncio.run(outer())
"""
)


@pytest.mark.parametrize(
    ("code", "models"), [(TRIO, ["trio"]), (NESTED, ["nested", "outer", "threaded"])], ids=["trio", "nested"]
)
def test_other_loops_than_the_one_of_asyncio(code: str, models: list[str]) -> None:
    with SseServer({model: whole(30) for model in models}) as server, HttpReceiver() as receiver:
        python(code, server.url, environment=otlp("http/protobuf", receiver))
        assert told(receiver.spans()) == [(model, "completed", 30) for model in models]


def test_the_opentelemetry_instrument_command() -> None:
    """The zero-code agent finds us by the entry point, beside an SDK that it sets up itself."""
    agent = Path(sys.executable).with_name("opentelemetry-instrument")
    with SseServer({"whole": whole(3)}) as server, HttpReceiver() as receiver:
        environment = {
            **otlp("http/protobuf", receiver),
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "openai",  # the peers of the tests beside us
        }
        code = PRELUDE + "list(ask('whole'))\n"
        python(code, server.url, environment=environment, command=(str(agent),))
        assert told(receiver.spans()) == [("whole", "completed", 3)]
        [request] = [span for span in receiver.spans() if span.name == "chat whole"]
        assert {parent for _, parent in streams(receiver.spans())} == {request.span_id}


def test_instrumenting_pulls_in_no_service_side_package() -> None:
    service = ("grpc", "pandas", "numpy", "pyarrow", "yaml")
    code = (
        "import sys, otel_llm; otel_llm.instrument(); import opentelemetry.sdk.trace;"
        f"print([name for name in {service!r} if name in sys.modules])"
    )
    assert python(code, environment={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}).strip() == "[]"
