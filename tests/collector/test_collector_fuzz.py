"""Any bytes at the listeners, and any mutation of valid messages, give a status; never a crash, a hang or growth.

100,000 cases by default, most of them where a message is taken in, in this process; the same ones in each run. More by
hand: `OTEL_LLM_FUZZ_CASES=5000000 SEED=7 pytest tests/collector/test_collector_fuzz.py -s`. A case that
fails is shown as hex.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import socket
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from support.collector.message_mutations import OF_MESSAGES, mutate_bytes, mutate_json, varint
from support.commands import Collector, collector, wait_until
from support.core.dense_exports import near_the_bound
from support.examples import SEED
from support.otlp import T0_NS, attributes_of, export, request_span, segment_span, stream_spans, token
from support.patience import WAIT_S

from otel_llm import semconv
from otel_llm.actions.sinks.console import Console
from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT
from otel_llm.collector.receive.listeners import Addresses
from otel_llm.collector.service import Service
from otel_llm.collector.settings import JournalSettings, Limits, Settings
from otel_llm.evaluate.timers import Timeouts
from otel_llm.formats.batch import Batch
from otel_llm.formats.otlp.export_json import parse_json
from otel_llm.formats.otlp.export_request import decode, parse, read
from otel_llm.formats.otlp.length_delimited import refuse_many_parts
from otel_llm.formats.records import DecodeError
from otel_llm.live.exposition import SHARED_NS
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.errors import RefusalError
from otel_llm.shared.web.address import Address

CASES = int(os.environ.get("OTEL_LLM_FUZZ_CASES", "100000"))
MESSAGES, DOCUMENTS = CASES * 80 // 100, CASES * 15 // 100
CALLS, POSTS, RAW_GRPC, RAW_HTTP = CASES * 2 // 100, CASES // 100, CASES // 100, CASES // 100
MS = 1_000_000
MIB = 2**20
TINY_SHARE = 0.01
"""Of the messages: many tiny parts of one kind, about as many as are let in."""
LOCAL = Address("127.0.0.1", 0)
CAPTURED = Path(__file__).parent.parent / "formats" / "foreign" / "captured"
PROTOBUF = "application/x-protobuf"


def small_messages() -> list[ExportTraceServiceRequest]:
    tokens = [T0_NS + i * 50 * MS for i in range(4)]
    streams = [
        stream_spans(tokens, end_ns=T0_NS + 300 * MS, segment_tokens=2),
        stream_spans(tokens, request=2, choice=1, end_ns=T0_NS + 300 * MS, outcome="abandoned"),
    ]
    mixed = [token(T0_NS, count=3), token(T0_NS + MS, kind="reasoning"), ("other", T0_NS)]
    made = [export(*spans, request_span(request=number)) for number, spans in enumerate(streams, 1)]
    made += [export(span) for span in streams[0]]
    made.append(export(segment_span(1, 0, mixed, request=3), resource={"service.instance.id": "i"}))
    made.append(export(request_span(request=4, events=tokens, error=True, dropped_events=2)))
    made.append(export(request_span(request=5, name="llm_request", attributes={"gen_ai.latency.e2e": 1.5, "x": "y"})))
    made.append(ExportTraceServiceRequest())
    return made


def large_messages() -> list[ExportTraceServiceRequest]:
    many = [segment_span(seq, seq * 8, [T0_NS + i for i in range(8)], request=9) for seq in range(70)]
    plain = export(*many)
    odd = export(*many[:40])
    odd.resource_spans[0].scope_spans[0].spans[20].attributes.extend(attributes_of({semconv.OUTCOME: "completed"}))
    return [plain, odd, *(parse_json(path.read_bytes()) for path in sorted(CAPTURED.glob("*.json")))]


SMALL = [message.SerializeToString() for message in small_messages()]
LARGE = [message.SerializeToString() for message in large_messages()]


def as_otlp_json(message: ExportTraceServiceRequest) -> str:
    """Return a message as OTLP has it: protobuf's JSON, but for ids in hex."""
    document = json.dumps(MessageToDict(message))
    ids = r'("(?:traceId|spanId|parentSpanId)": ")[A-Za-z0-9+/=]+"'
    return re.sub(ids, lambda found: f'{found[1]}{"0" * 15}1"', document)


JSON = [as_otlp_json(message) for message in small_messages()]


def messages(count: int, salt: str) -> Iterator[bytes]:
    random = Random(f"{SEED} {salt}")
    for _ in range(count):
        if random.random() < TINY_SHARE:
            yield near_the_bound(random)
            continue
        raw = random.choice(LARGE if random.random() < 0.01 else SMALL)
        if random.random() < 0.02:
            raw += random.choice(SMALL)
        yield random.choice(OF_MESSAGES)(raw, random) if random.random() < 0.98 else random.randbytes(200)


def documents(count: int, salt: str) -> Iterator[bytes]:
    random = Random(f"{SEED} {salt}")
    for _ in range(count):
        yield mutate_json(random.choice(JSON), random)


def answered(accept: Callable[[bytes], bytes], raw: bytes) -> str:
    """Return what became of a message; whatever is no answer fails."""
    try:
        ExportTraceServiceResponse.FromString(accept(raw))
    except (DecodeError, RefusalError) as error:
        return type(error).__name__
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__} for {raw.hex()}") from error
    return "accepted"


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path("/proc", str(pid), "statm").read_text().split()[1]) * 4096


def open_files(pid: int | str = "self") -> int:
    return len(list(Path("/proc", str(pid), "fd").iterdir()))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A whole collector in this process, which follows what it is sent for a second only."""
    made = Service(
        classes=load_slo(),
        rules=load_rules(()),
        settings=Settings(limits=Limits(streams_in_flight=20_000), journal=JournalSettings(fsync="never")),
        journal_folder=tmp_path_factory.mktemp("journal"),
        decisions_path=None,
        windows_path=None,
        at=Addresses(LOCAL, LOCAL, LOCAL),
        window_ns=1000 * MS,
        timeouts=Timeouts(lateness_ns=500 * MS, lost_after_ns=1000 * MS),
        console=Console(echo=lambda _: None, verdicts="all"),
        load=lambda: (load_slo(), load_rules(())),
    )
    made.prepare()
    made.serve()
    yield made
    made.stop()


def run(service: Service, cases: Iterator[bytes], take: Callable[[bytes], bytes]) -> Counter[str]:
    """Have every case taken in; what is left behind is bounded, and good exports are judged as before."""
    pipeline = service.pipeline
    outcomes: Counter[str] = Counter()
    threads, files = threading.active_count(), open_files()
    resident = 0
    for number, raw in enumerate(cases):
        outcomes[answered(take, raw)] += 1
        if number % 100 == 0:
            wait_until("evaluated", lambda: pipeline.counts()["queue"] < 500)
        if number == CASES // 20:
            resident = resident_bytes()
    wait_until("evaluated", lambda: pipeline.counts()["queue"] == 0)
    assert pipeline.why_unhealthy() is None
    assert pipeline.counts().get("internal_errors", 0) == 0
    assert threading.active_count() <= threads + 2
    assert open_files() <= files + 5
    assert not resident or resident_bytes() < resident + 300 * MIB
    number = 10**6 + time.monotonic_ns() % 10**6
    spans = stream_spans([T0_NS + 1], request=number, end_ns=T0_NS + 2)
    assert pipeline.accept(export(*spans, request_span(request=number)).SerializeToString()) == b""
    trace = number.to_bytes(16, "big").hex()
    wait_until("judged", lambda: any(row()["trace_id"] == trace for row in pipeline.sinks.recent.of()))
    return outcomes


def test_any_message(service: Service) -> None:
    outcomes = run(service, messages(MESSAGES, "messages"), service.pipeline.accept)
    print(outcomes)
    assert set(outcomes) <= {"accepted", "DecodeError", "BusyError"}
    assert min(outcomes["accepted"], outcomes["DecodeError"]) > MESSAGES / 10
    assert outcomes["BusyError"] < MESSAGES / 10


def test_any_document(service: Service) -> None:
    pipeline = service.pipeline

    def take(text: bytes) -> bytes:
        return pipeline.accept(parse_json(text).SerializeToString())

    outcomes = run(service, documents(DOCUMENTS, "documents"), take)
    print(outcomes)
    assert set(outcomes) <= {"accepted", "DecodeError", "BusyError"}
    assert min(outcomes["accepted"], outcomes["DecodeError"]) > DOCUMENTS / 10


def test_both_ways_of_reading_agree() -> None:
    """Columns hold what one-by-one reading gives, and are refused if that is."""

    def summary(read_it: Callable[[bytes], Batch], raw: bytes) -> object:
        try:
            batch = read_it(raw)
        except DecodeError:
            return "no message"
        return batch.spans, batch.tokens, sorted(batch.refused.items()), batch.ignored

    def by_protobuf(raw: bytes) -> Batch:
        refuse_many_parts(raw)
        return decode(parse(raw))

    for raw in messages(CASES // 10, "both"):
        one, other = summary(by_protobuf, raw), summary(lambda raw: read(raw), raw)
        assert one == other, raw.hex()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """A collector as a process, with short timeouts."""
    folder = tmp_path_factory.mktemp("running")
    (folder / "collector.yaml").write_text(
        "version: 1\n"
        "limits: {header_seconds: 2, body_seconds: 2, idle_connection_seconds: 3, streams_in_flight: 20000}\n"
    )
    arguments = ("--config", folder / "collector.yaml", "--verdicts", "none", "--lost-after", "1s", "--lateness", "1s")
    with collector(folder, *arguments) as made:
        yield made


@pytest.fixture
def unharmed(running: Collector) -> Iterator[None]:
    """What a test leaves behind in the collector is bounded, and it does its work."""
    good(running)
    pid = running.process.pid
    files, resident = open_files(pid), resident_bytes(pid)
    yield
    time.sleep(SHARED_NS / 1e9)  # a scrape may show what the one before the test found
    good(running)
    wait_until("the files are given back", lambda: open_files(pid) <= files + 5)
    assert resident_bytes(pid) < resident + 150 * MIB
    threads = re.search(r"Threads:\s+(\d+)", Path("/proc", str(pid), "status").read_text())
    assert threads is not None
    assert int(threads[1]) < 2 * Limits().concurrent_exports + 50


def good(running: Collector) -> None:
    raw = export(*stream_spans([T0_NS + 1], end_ns=T0_NS + 2)).SerializeToString()
    with grpc.insecure_channel(running.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        assert channel.unary_unary(EXPORT)(raw, timeout=WAIT_S, wait_for_ready=True) == b""
    request = urllib.request.Request(f"http://{running.http}/v1/traces", raw, {"Content-Type": PROTOBUF})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"{running.web}/healthz", timeout=WAIT_S) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"{running.web}/metrics", timeout=WAIT_S) as answer:
        assert b"\notel_llm_collector_internal_errors_total 0.0\n" in answer.read()


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


@pytest.mark.usefixtures("unharmed")
def test_any_message_over_grpc(running: Collector) -> None:
    answers: Counter[str] = Counter()
    with grpc.insecure_channel(running.grpc) as channel:
        export_it = channel.unary_unary(EXPORT)
        for raw in messages(CALLS, "calls"):
            try:
                export_it(raw, timeout=WAIT_S)
                code = "OK"
            except grpc.RpcError as error:
                code = error.code().name
            answers[code] += 1
            assert code in ("OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"), raw.hex()
    assert min(answers["OK"], answers["INVALID_ARGUMENT"]) > CALLS / 10


@pytest.mark.usefixtures("unharmed")
def test_any_body_over_http(running: Collector) -> None:
    random = Random(f"{SEED} posts")
    answers: Counter[int] = Counter()
    connection = http.client.HTTPConnection(running.http, timeout=WAIT_S)
    for raw, text in zip(messages(POSTS // 2, "posts"), documents(POSTS // 2, "posted"), strict=True):
        for body, kind in ((raw, PROTOBUF), (text, "application/json")):
            headers = {"Content-Type": kind if random.random() < 0.95 else random.choice(("", "text/plain", kind * 99))}
            sent = body
            if random.random() < 0.3:
                headers["Content-Encoding"] = random.choice(("gzip", "gzip", "gzip", "identity", "br", "gzip, gzip"))
                sent = gzip.compress(body, 1) if random.random() < 0.7 else body
                sent = mutate_bytes(sent, random) if random.random() < 0.3 else sent
            connection.request("POST", "/v1/traces", sent, headers)
            answer = connection.getresponse()
            answer.read()
            answers[answer.status] += 1
            assert answer.status in (200, 400, 413, 415, 429), (headers, sent.hex())
    connection.close()
    assert min(answers[200], answers[400]) > POSTS / 10


def http_request(random: Random) -> bytes:
    body = random.choice(SMALL)
    method = random.choice((b"POST", b"POST", b"POST", b"GET", b"OPTIONS", b"PRI", b"HEAD"))
    path = random.choice((b"/v1/traces", b"/v1/traces", b"/", b"/metrics", b"/v1/traces?x=%00"))
    framing = random.choice(
        (b"Content-Length: %d" % len(body), b"Content-Length: 99999", b"Transfer-Encoding: chunked")
    )
    if framing.startswith(b"Transfer"):
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    more = random.choice((b"", b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\n"))
    kind = b"Content-Type: application/x-protobuf\r\n"
    return b"%b %b HTTP/1.1\r\nHost: localhost\r\n%b%b%b\r\n\r\n%b" % (method, path, kind, more, framing, body)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    # RFC 9113, section 4.1.
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def grpc_request(random: Random) -> bytes:
    """Return HTTP/2 with one RPC, its headers as plain literals (RFC 7541, section 6.2.2)."""
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": EXPORT.encode(),
        b":authority": b"localhost",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
        random.choice((b"grpc-encoding", b"grpc-timeout", b"x")): random.choice((b"gzip", b"1S", b"identity", b"1n")),
    }
    block = b"".join(b"\x00" + varint(len(k)) + k + varint(len(v)) + v for k, v in headers.items())
    raw = random.choice(SMALL)
    message = bytes([random.random() < 0.1]) + len(raw).to_bytes(4, "big") + raw
    frames = [frame(4, 0, 0, b""), frame(1, 4, 1, block), frame(0, random.choice((0, 1)), 1, message)]
    for _ in range(random.randint(0, 3)):
        kind = random.randrange(12)
        frames.insert(
            random.randrange(len(frames) + 1),
            frame(kind, random.randrange(256), random.choice((0, 1, 2, 3, 2**31 - 1)), random.randbytes(8)),
        )
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(frames)


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("protocol", ["http", "grpc", "web"])
def test_any_bytes_on_a_connection(running: Collector, protocol: str) -> None:
    random = Random(f"{SEED} {protocol}")
    make = grpc_request if protocol == "grpc" else http_request
    address = {"http": running.http, "grpc": running.grpc, "web": running.web.removeprefix("http://")}[protocol]
    open_ones: deque[socket.socket] = deque()
    for _ in range(RAW_GRPC if protocol == "grpc" else RAW_HTTP // 2):
        raw = random.randbytes(300) if random.random() < 0.1 else make(random)
        raw = mutate_bytes(raw, random) if random.random() < 0.8 else raw
        connection = connect(address)
        with suppress(OSError):
            connection.sendall(raw)
            if random.random() < 0.2:
                connection.shutdown(socket.SHUT_WR)
        open_ones.append(connection)
        if len(open_ones) > 100:
            open_ones.popleft().close()
    for connection in open_ones:  # they are answered and closed, whatever they said
        with suppress(ConnectionResetError):
            while connection.recv(65536):
                pass
        connection.close()
