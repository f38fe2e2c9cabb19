"""TLS and mTLS of the receivers, and certificates that are replaced while they serve."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from support.collector.fake_evaluator import FakeEvaluator
from support.collector.http_client import RAW, connect, head, rest, send
from support.collector.tls_files import Pair, authority, signed
from support.commands import wait_until
from support.patience import WAIT_S

from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT, GrpcCertificates, GrpcReceiver
from otel_llm.collector.receive.http_listener import HttpServer
from otel_llm.collector.receive.otlp_http import otlp_app
from otel_llm.collector.settings import Limits
from otel_llm.config.errors import TlsFileError
from otel_llm.config.tls import Certificates, Tls
from otel_llm.shared.web.address import Address

LOCAL = Address("127.0.0.1", 0)


@dataclass
class Open:
    """Both receivers under one set of certificates."""

    files: Tls
    certificates: Certificates
    shown: GrpcCertificates
    grpc: GrpcReceiver
    http: HttpServer
    behind: FakeEvaluator

    def reload(self) -> bool:
        """Read the files anew, for both."""
        changed = self.certificates.reload()
        self.shown.replace(self.certificates.pem)
        return changed


def installed(folder: Path, pair: Pair, client_ca: Pair | None = None) -> Tls:
    """Put a pair, and an authority for clients, where a service has them."""
    files = Tls(
        certificate=folder / "server.pem",
        key=folder / "server.key",
        client_ca=None if client_ca is None else folder / "clients.pem",
    )
    for path, raw in zip((files.certificate, files.key), pair.pem, strict=True):
        path.write_bytes(raw)
    if client_ca is not None and files.client_ca is not None:
        files.client_ca.write_bytes(client_ca.certificate.read_bytes())
    return files


@contextmanager
def opened(folder: Path, client_ca: Pair | None = None, limits: Limits | None = None) -> Iterator[Open]:
    files = installed(folder, signed(), client_ca)
    certificates = Certificates(files)
    behind = FakeEvaluator()
    shown = GrpcCertificates(certificates.pem)
    receiver = GrpcReceiver(LOCAL, behind, certificates=shown, limits=limits)
    server = HttpServer(otlp_app(behind), LOCAL, option="--http", context=certificates.context, limits=limits)
    with ExitStack() as stack:
        for one in (receiver, server):
            stack.callback(one.stop, 0)
            one.start()
        yield Open(files, certificates, shown, receiver, server, behind)


def grpc_export(served: Open, trusted: Pair, client: Pair | None = None) -> grpc.StatusCode:
    """Return how an export ends."""
    key, chain = (None, None) if client is None else (client.pem[1], client.pem[0])
    credentials = grpc.ssl_channel_credentials(trusted.certificate.read_bytes(), key, chain)
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"localhost:{served.grpc.port}", credentials, options=options) as channel:
        try:
            channel.unary_unary(EXPORT)(RAW, timeout=WAIT_S)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def http_export(served: Open, trusted: Pair, client: Pair | None = None) -> int:
    """Return how an export ends; raises OSError if there is no TLS between us."""
    context = ssl.create_default_context(cafile=trusted.certificate)
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return send(served.http.port, context=context)[0]


def test_both_receivers_speak_tls(tmp_path: Path) -> None:
    with opened(tmp_path) as served:
        assert grpc_export(served, authority()) is grpc.StatusCode.OK
        assert http_export(served, authority()) == 200
        assert len(served.behind.messages) == 2
        assert grpc_export(served, authority("two")) is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(ssl.SSLCertVerificationError):
            http_export(served, authority("two"))


def test_the_standard_exporters_deliver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # requests prefers these to the exporter's own setting
        monkeypatch.delenv(name, raising=False)
    ca = authority()
    with opened(tmp_path) as served:
        exporters: list[SpanExporter] = [
            GrpcExporter(
                endpoint=f"https://localhost:{served.grpc.port}",
                credentials=grpc.ssl_channel_credentials(ca.certificate.read_bytes()),
            ),
            HttpExporter(
                endpoint=f"https://localhost:{served.http.port}/v1/traces", certificate_file=str(ca.certificate)
            ),
        ]
        for exporter in exporters:
            provider = TracerProvider(shutdown_on_exit=False)
            provider.add_span_processor(SimpleSpanProcessor(exporter))
            provider.get_tracer("t").start_span("otel_llm.segment").end()
            provider.shutdown()
    assert [span.name for span in served.behind.spans] == ["otel_llm.segment"] * 2


def test_plain_text_is_not_answered(tmp_path: Path) -> None:
    with opened(tmp_path) as served:
        with connect(served.http.port) as connection:
            connection.sendall(head("Content-Length: 0"))
            assert not rest(connection).startswith(b"HTTP")
        with (
            grpc.insecure_channel(str(served.grpc.address)) as channel,
            pytest.raises(grpc.RpcError, match="UNAVAILABLE"),
        ):
            channel.unary_unary(EXPORT)(RAW, timeout=WAIT_S)
        assert served.behind.messages == []


def test_old_tls_is_not_spoken(tmp_path: Path) -> None:
    with opened(tmp_path) as served:
        context = ssl.create_default_context(cafile=authority().certificate)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError):
            send(served.http.port, context=context)


def test_clients_must_show_a_certificate_where_that_is_asked(tmp_path: Path) -> None:
    with opened(tmp_path, client_ca=authority("clients")) as served:
        known, unknown = signed("app", "clients"), signed("stranger", "two")
        assert grpc_export(served, authority(), known) is grpc.StatusCode.OK
        assert http_export(served, authority(), known) == 200
        for client in (None, unknown, signed()):
            assert grpc_export(served, authority(), client) is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(OSError):  # noqa: PT011 - an alert, or a connection that was closed with it
                http_export(served, authority(), client)
        assert len(served.behind.messages) == 2
        assert http_export(served, authority(), known) == 200


def test_certificates_are_replaced_while_the_receivers_serve(tmp_path: Path) -> None:
    with opened(tmp_path, client_ca=authority("clients")) as served:
        client = signed("app", "clients")
        assert grpc_export(served, authority(), client) is grpc.StatusCode.OK
        assert not served.reload()
        installed(tmp_path, signed("later", "two"), authority("others"))
        assert grpc_export(served, authority(), client) is grpc.StatusCode.OK  # not before the reload
        assert served.reload()
        # Another certificate of ours, by another authority, and another authority for clients.
        other = signed("app", "others")
        assert grpc_export(served, authority("two"), other) is grpc.StatusCode.OK
        assert http_export(served, authority("two"), other) == 200
        assert grpc_export(served, authority("two"), client) is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(OSError):  # noqa: PT011
            http_export(served, authority("two"), client)
        assert grpc_export(served, authority(), other) is grpc.StatusCode.UNAVAILABLE


def test_connections_go_on_over_a_replacement(tmp_path: Path) -> None:
    with opened(tmp_path) as served:
        credentials = grpc.ssl_channel_credentials(authority().certificate.read_bytes())
        with grpc.secure_channel(f"localhost:{served.grpc.port}", credentials) as channel:
            channel.unary_unary(EXPORT)(RAW, timeout=WAIT_S)
            installed(tmp_path, signed("later", "two"))
            served.reload()
            channel.unary_unary(EXPORT)(RAW, timeout=WAIT_S)


def test_what_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as served:
        good = signed()
        for path, raw, says in (
            (served.files.certificate, b"", "not a PEM file"),
            (served.files.certificate, b"-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n", "server.pem"),
            (served.files.key, signed("later", "two").pem[1], r"server\.key: not the key of .*server\.pem"),
            (served.files.key, None, "No such file or directory"),
        ):
            installed(tmp_path, good)
            if raw is None:
                path.unlink()
            else:
                path.write_bytes(raw)
            with pytest.raises(TlsFileError, match=says):
                served.reload()
            assert http_export(served, authority()) == 200
            assert grpc_export(served, authority()) is grpc.StatusCode.OK


def test_a_handshake_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    with opened(tmp_path, limits=Limits(header_s=0.5)) as served:
        for port in (served.http.port, served.grpc.port):
            for sent in (b"", b"\x16\x03\x01"):
                with connect(port) as connection:
                    connection.sendall(sent)
                    rest(connection)
        wait_until("none is kept", lambda: served.http.connections == 0)
        assert http_export(served, authority()) == 200


def test_handshakes_count_as_connections(tmp_path: Path) -> None:
    with opened(tmp_path, limits=Limits(connections=12)) as served:
        half_open = [connect(served.http.port) for _ in range(3)]
        wait_until("they are in", lambda: served.http.connections == 3)
        with connect(served.http.port) as beyond:
            assert rest(half_open[0]) == b""  # the oldest of more than a quarter
            wait_until("one came for one that went", lambda: served.http.connections == 3)
            beyond.setblocking(False)
            with pytest.raises(BlockingIOError):
                beyond.recv(1)
            assert http_export(served, authority()) == 200
        for connection in half_open:
            connection.close()
