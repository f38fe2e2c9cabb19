"""A stream belongs to its sender: live, in the journal, after a restart, in the audit, and at the web port."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from rules.scripted import one_rule
from support.collector.flow import flowing
from support.commands import Collector, collector, wait_until
from support.live import Live
from support.otlp import T0_NS, export, request_span, stream_spans
from support.patience import WAIT_S

import otel_llm.audit
from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT
from otel_llm.collector.receive.senders import Sender
from otel_llm.collector.restart import replay
from otel_llm.evaluate.intake import read_export
from otel_llm.formats.io.journal_format import TENANT, Splitter, frame, split
from otel_llm.formats.records import DecodeError
from otel_llm.formats.rows import Row
from otel_llm.formats.spans.attributes import IntakeLimits
from otel_llm.journal.journal import Journal
from otel_llm.rules.files.ruleset import RuleSet

MS, S = 1_000_000, 1_000_000_000
NAMES = st.from_regex(TENANT, fullmatch=True)
Sent = tuple[int, ExportTraceServiceRequest, str | None]
"""When the collector received it (unix ns), what, and the tenant of the sender's token."""


# The journal's field.


@given(st.lists(st.tuples(st.binary(max_size=40), NAMES | st.none()), max_size=5))
def test_the_journal_keeps_tenants(records: list[tuple[bytes, str | None]]) -> None:
    data = b"".join(frame(b"\n" + raw, T0_NS + at, tenant) for at, (raw, tenant) in enumerate(records))
    found, skipped = split(data)
    assert not skipped
    assert [(one.raw, one.tenant) for one in found] == [(b"\n" + raw, name or "default") for raw, name in records]


@given(NAMES, NAMES)
def test_a_field_that_the_sender_wrote_is_not_believed(claimed: str, true: str) -> None:
    field = b"\xda\x3e" + bytes((len(claimed),)) + claimed.encode()
    raw = export(request_span()).SerializeToString()
    for message in (raw + field, field + raw, field * 3):
        for tenant in (true, None):
            [record], _ = split(frame(message, T0_NS, tenant))
            assert (record.raw, record.tenant) == (message, tenant or "default")


def test_any_protobuf_parser_finds_the_fields() -> None:
    message = ExportTraceServiceRequest.FromString(frame(export(request_span()).SerializeToString(), 7, "acme")[4:])
    assert len(message.resource_spans) == 1
    unknown = UnknownFieldSet(message)
    fields = {unknown[at].field_number: unknown[at].data for at in range(len(unknown))}
    assert (fields[1003], fields[1001]) == (b"acme", 7)
    assert list(fields) == [1003, 1001, 1002]


def test_without_tokens_nothing_is_written() -> None:
    raw = export(request_span()).SerializeToString()
    assert len(frame(raw, 7)) == 4 + len(raw) + 16
    assert len(frame(raw, 7, "default")) > len(frame(raw, 7))


@pytest.mark.parametrize("tail", [b"", b"padding", frame(b"", 9)])
def test_an_export_that_holds_a_record_is_refused(tail: bytes) -> None:
    """A reader behind a cut or broken record looks for the next seal, and would find the sender's own record."""
    forged = frame(b"", 1)[4:] + frame(export(request_span()).SerializeToString(), 7, "victim") + tail
    [record] = Splitter.behind_a_broken_length(forged)[:1]
    assert record.tenant == "victim"
    for raw in (forged, b"\n" + forged, b"\xc9\x3e" * 9 + forged):
        with pytest.raises(DecodeError, match="a record of a journal"):
            frame(raw, T0_NS, "mallory")


def test_a_seal_alone_is_no_record() -> None:
    seal = frame(b"", 1)[4:]
    for raw in (seal, seal + b"\0\0\0\x10" + bytes(16), seal * 5, b"\xc9\x3e", frame(b"abc", 7, "acme")):
        [record], _ = split(frame(raw, T0_NS, "acme"))
        assert record.raw == raw


# The same ids from two senders.


def reply(tokens: int, gap_ms: int, outcome: str = "completed") -> list[ExportTraceServiceRequest]:
    """Return the exports of one stream, always with the same ids: begun, its segments, its request span."""
    times = [T0_NS + (1 + n) * gap_ms * MS for n in range(tokens)]
    end_ns = times[-1] + MS
    spans = stream_spans(times, end_ns=end_ns, segment_tokens=2, outcome=outcome)
    last = request_span(end_ns=end_ns)
    return [export(one) for one in (*spans, last)]


def sent(of: Mapping[str | None, Sequence[ExportTraceServiceRequest]]) -> list[Sent]:
    """Return the exports of tenants, received in turns, 10 ms apart."""
    found: list[Sent] = []
    longest = max(map(len, of.values()))
    for turn in range(longest):
        for tenant, exports in of.items():
            if turn < len(exports):
                found.append((T0_NS + len(found) * 10 * MS, exports[turn], tenant))
    return found


def live(deliveries: Sequence[Sent], rules: RuleSet | None = None, *, columns: bool = True) -> Live:
    made = Live(rules=rules or RuleSet(()), columns=columns)
    for at_ns, message, tenant in deliveries:
        made.evaluator.apply(read_export(message.SerializeToString(), at_ns, IntakeLimits(), tenant), at_ns)
    made.evaluator.advance(deliveries[-1][0] + 300 * S)
    return made


def journal(folder: Path, deliveries: Sequence[Sent]) -> Path:
    path = folder / "journal.otlp"
    path.write_bytes(b"".join(frame(one.SerializeToString(), at_ns, tenant) for at_ns, one, tenant in deliveries))
    return path


def by_key(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return sorted((dict(row) for row in rows), key=str)


TWO: dict[str | None, list[ExportTraceServiceRequest]] = {"acme": reply(9, 20), "zeta": reply(4, 400, "error")}


@pytest.mark.parametrize("columns", [True, False])
def test_each_tenant_has_the_rows_that_it_has_alone(tmp_path: Path, columns: bool) -> None:
    both = live(sent(TWO), columns=columns).rows
    assert {row["tenant"]: row["tokens"] for row in both} == {"acme": 9, "zeta": 4}
    for tenant, exports in TWO.items():
        alone = live(sent({tenant: exports})).rows
        assert [row for row in both if row["tenant"] == tenant] == alone
    assert by_key(otel_llm.audit.load(journal(tmp_path, sent(TWO))).rows) == by_key(both)


@pytest.mark.parametrize("columns", [True, False])
def test_another_tenant_cannot_end_repeat_or_spoil_a_stream(columns: bool) -> None:
    begun, *rest = TWO["acme"]
    attacks: dict[str, list[ExportTraceServiceRequest]] = {
        "ends": [reply(1, 1, "error")[-2]],
        "judges": [reply(1, 1, "error")[-1]],
        "repeats": rest[:2],
        "commits": [begun],
    }
    own = live(sent({"acme": TWO["acme"]}), columns=columns).rows
    for attack in attacks.values():
        mixed = [(T0_NS, begun, "acme"), *((T0_NS + MS, one, "mallory") for one in attack)]
        mixed += [(T0_NS + 10 * MS * (1 + n), one, "acme") for n, one in enumerate(rest)]
        rows = [row for row in live(mixed, columns=columns).rows if row["tenant"] == "acme"]
        assert rows == own


def test_streams_of_two_tenants_fire_apart_and_each_says_whose_it_is() -> None:
    made = live(sent(TWO), one_rule("tokens >= 1"))
    records = [one.record() for one in made.decisions if one.state == "firing"]
    assert sorted(one["tenant"] for one in records) == ["acme", "zeta"]
    assert len({(one["trace_id"], one["span_id"], one["choice"]) for one in records}) == 1


def test_a_restart_goes_on_with_the_streams_of_each(tmp_path: Path) -> None:
    of_all = sent(TWO)
    with flowing(tmp_path) as flow:
        for _, message, tenant in of_all[:5]:
            flow.accept(message.SerializeToString(), Sender(1, tenant))
    rows: list[Row] = []
    with Journal(tmp_path, fsync="never", compress=False) as opened, flowing(tmp_path / "next") as flow:
        flow.call(lambda: replay(flow, opened, windows=None))
        assert {key[2] for key in flow.evaluator.live} == {"acme", "zeta"}
        for _, message, tenant in of_all[5:]:
            flow.accept(message.SerializeToString(), Sender(1, tenant))
        wait_until("judged", lambda: len(flow.sinks.recent.of()) == 2)
        rows = [row() for row in flow.sinks.recent.of()]
    assert {row["tenant"]: row["tokens"] for row in rows} == {"acme": 9, "zeta": 4}


# The web port.

ACME, ZETA, BOSS = "token-of-acme-0000000", "token-of-zeta-0000000", "token-of-an-operator"
SETTINGS = "version: 1\nauth: {tokens_file: tokens}\noperators: {tokens_file: operators}\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    folder = tmp_path_factory.mktemp("tenants")
    (folder / "tokens").write_text(f"acme={ACME}\nzeta={ZETA}\n")
    (folder / "operators").write_text(f"{BOSS}\n")
    (folder / "settings.yaml").write_text(SETTINGS)
    with collector(folder, "--config", folder / "settings.yaml") as running:
        begun, *rest = TWO["acme"]
        post(running, begun, ACME)
        over_grpc(running, begun, ZETA)
        for message in rest:
            post(running, message, ACME)
        wait_until("judged", lambda: len(get(running, "/v1/requests", BOSS)["requests"]) == 1)
        yield running


def post(running: Collector, message: ExportTraceServiceRequest, token: str) -> None:
    headers = {"Content-Type": "application/x-protobuf", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://{running.http}/v1/traces", message.SerializeToString(), headers)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        assert answer.status == 200


def over_grpc(running: Collector, message: ExportTraceServiceRequest, token: str) -> None:
    with grpc.insecure_channel(running.grpc) as channel:
        metadata = [("authorization", f"Bearer {token}")]
        channel.unary_unary(EXPORT)(message.SerializeToString(), timeout=WAIT_S, metadata=metadata)


def get(running: Collector, path: str, token: str) -> Any:
    request = urllib.request.Request(f"{running.web}{path}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        text = answer.read().decode()
    return text if path == "/metrics" else json.loads(text)


def first_events(running: Collector, token: str, query: str = "") -> dict[str, Any]:
    request = urllib.request.Request(f"{running.web}/v1/events{query}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as events:
        lines = [events.readline().decode().rstrip("\n") for _ in range(9)]
    return {name[7:]: json.loads(data[6:]) for name, data in zip(lines[::3], lines[1::3], strict=True)}


@pytest.mark.parametrize(
    ("token", "in_flight", "judged"),
    [(ACME, [], ["acme"]), (ZETA, ["zeta"], []), (BOSS, ["zeta"], ["acme"])],
    ids=["acme", "zeta", "operator"],
)
def test_a_token_shows_its_tenants_streams_and_an_operators_all(
    served: Collector, token: str, in_flight: list[str], judged: list[str]
) -> None:
    found = get(served, "/v1/streams", token)
    assert [row["tenant"] for row in found["streams"]] == in_flight
    assert (found["in_flight"], [row["tenant"] for row in found["recent"]]) == (len(in_flight), judged)
    assert [row["tenant"] for row in get(served, "/v1/requests", token)["requests"]] == judged
    events = first_events(served, token)
    assert [row["tenant"] for row in events["page"]["streams"]] == in_flight
    assert (events["fleet"]["in_flight"], [row["tenant"] for row in events["fleet"]["verdicts"]]) == (
        len(in_flight),
        judged,
    )


def test_no_parameter_shows_another_tenant(served: Collector) -> None:
    key = f"{1:032x}-{1:016x}-0"
    for query in ("?tenant=zeta", f"?stream={key}-zeta", f"?stream={key}-zeta&tenant=zeta"):
        found = get(served, f"/v1/streams{query}", ACME)
        assert (found["streams"], found.get("followed")) == ([], None)
    assert get(served, f"/v1/streams?stream={key}-zeta", BOSS)["followed"]["row"]["tenant"] == "zeta"
    assert [one["tenant"] for one in get(served, "/v1/streams?tenant=zeta", BOSS)["streams"]] == ["zeta"]


def status(request: urllib.request.Request) -> int:
    """Return the status of an answer."""
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def test_metrics_are_an_operators(served: Collector) -> None:
    assert "otel_llm_requests_total" in get(served, "/metrics", BOSS)
    requested = urllib.request.Request(f"{served.web}/metrics", headers={"Authorization": f"Bearer {ACME}"})
    assert status(requested) == 403


def test_an_operators_token_sends_nothing(served: Collector) -> None:
    headers = {"Content-Type": "application/x-protobuf", "Authorization": f"Bearer {BOSS}"}
    raw = TWO["acme"][0].SerializeToString()
    assert status(urllib.request.Request(f"http://{served.http}/v1/traces", raw, headers)) == 401


@pytest.mark.parametrize("host", ["x/healthz?", "x/readyz#", "localhost/healthz?", "x/live/main.js?"])
def test_a_host_with_a_path_is_no_probe(served: Collector, host: str) -> None:
    """Old Starlette makes the URL of a request from its Host, and routes by the path that was asked."""
    for path in ("/v1/events", "/v1/streams", "/metrics"):
        requested = urllib.request.Request(f"{served.web}{path}", headers={"Host": host})
        assert status(requested) in {400, 401, 403}
