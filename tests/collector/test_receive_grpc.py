"""The gRPC receiver beyond its limits, and with clients that misbehave."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from support.collector.fake_evaluator import FakeEvaluator
from support.collector.http_client import rest
from support.commands import wait_until
from support.otlp import T0_NS, export, segment_span
from support.patience import WAIT_S

from otel_llm.collector.receive.errors import BusyError
from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT, MAX_METADATA_BYTES, GrpcReceiver
from otel_llm.collector.receive.senders import Accept, Sender
from otel_llm.collector.settings import Limits
from otel_llm.shared.web.address import Address
from otel_llm.shared.web.tokens import Tokens

RAW = export(segment_span(1, 0, [T0_NS])).SerializeToString()
SECRET = "a-token-of-this-test"


@contextmanager
def serving(
    accept: Accept | None = None, *, tokens: Tokens | None = None, limits: Limits | None = None
) -> Iterator[GrpcReceiver]:
    receiver = GrpcReceiver(Address("127.0.0.1", 0), accept or FakeEvaluator(), limits=limits, tokens=tokens)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop(0)


def connect(receiver: GrpcReceiver) -> grpc.Channel:
    """Return a channel with a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    return grpc.insecure_channel(str(receiver.address), options=options)


def call(channel: grpc.Channel, raw: bytes = RAW, *, token: str | None = None, padding: int = 0) -> bytes:
    sent = [] if token is None else [("authorization", token)]
    if padding:
        sent.append(("padding", "x" * padding))
    answer: bytes = channel.unary_unary(EXPORT)(raw, timeout=WAIT_S, metadata=sent)
    return answer


def refused(channel: grpc.Channel, raw: bytes = RAW, *, token: str | None = None, padding: int = 0) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as raised:
        call(channel, raw, token=token, padding=padding)
    return raised.value


def retry_s(error: grpc.RpcError) -> int | None:
    """Return when the answer says to come back."""
    for key, value in error.trailing_metadata():
        if key == "grpc-status-details-bin":
            info = RetryInfo()
            for detail in Status.FromString(value).details:
                if detail.Unpack(info):
                    return int(info.retry_delay.seconds)
    return None


def dawdle(channel: grpc.Channel, stop: Event) -> grpc.Future:
    """Begin an export whose message does not come."""

    def nothing() -> Iterator[bytes]:
        stop.wait(WAIT_S)
        yield from ()

    return channel.stream_unary(EXPORT).future(nothing(), timeout=WAIT_S)


def test_more_exports_than_it_takes_are_told_when_to_come_back() -> None:
    began, go_on = Event(), Event()

    def slow(_raw: bytes, _sender: Sender) -> bytes:
        began.set()
        assert go_on.wait(WAIT_S)
        return b""

    with serving(slow, limits=Limits(concurrent_exports=2, queued_exports=1)) as receiver, ExitStack() as stack:
        channels = [stack.enter_context(connect(receiver)) for _ in range(3)]
        pool = stack.enter_context(ThreadPoolExecutor(3))
        taken = [pool.submit(call, channel) for channel in channels]
        wait_until("two in hand and one waiting", lambda: receiver.pending == 3)
        for _ in range(20):  # it says so again and again, also on a connection that has had it all
            error = refused(channels[0])
            assert (error.code(), retry_s(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1)
        go_on.set()
        assert [one.result(WAIT_S) for one in taken] == [b"", b"", b""]
        assert call(channels[0]) == b""


def test_a_message_that_does_not_come_is_given_up() -> None:
    stop = Event()
    with serving(limits=Limits(body_s=0.5)) as receiver, connect(receiver) as channel:
        waiting = dawdle(channel, stop)
        with pytest.raises(grpc.RpcError) as raised:
            waiting.result(timeout=WAIT_S)
        assert raised.value.code() is grpc.StatusCode.CANCELLED
        call(channel)
    stop.set()


def test_those_who_dawdle_do_not_keep_out_the_others() -> None:
    stop = Event()
    limits = Limits(concurrent_exports=2, queued_exports=100, body_s=3600)
    with serving(limits=limits) as receiver, connect(receiver) as slow, connect(receiver) as quick:
        waiting = [dawdle(slow, stop) for _ in range(2)]
        wait_until("all threads are taken", lambda: receiver.pending == 2)
        call(quick)
        # The other one may keep its thread: no call waits for it now.
        wait_until("one of them is given up", lambda: any(one.done() for one in waiting))
        assert {one.code() for one in waiting if one.done()} == {grpc.StatusCode.CANCELLED}
    stop.set()


def test_a_stream_of_none_or_many_messages() -> None:
    behind = FakeEvaluator()
    with serving(behind) as receiver, connect(receiver) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            channel.stream_unary(EXPORT)(iter(()), timeout=WAIT_S)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        channel.stream_unary(EXPORT)(iter((RAW, b"\xff")), timeout=WAIT_S)  # one export is one message
        assert len(behind.messages) == 1


def answered(channel: grpc.Channel) -> bool:
    """Say whether an export is taken, as those see it who come back after UNAVAILABLE."""
    try:
        call(channel)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return True


def test_connections_beyond_the_limit_are_closed_and_the_others_go_on() -> None:
    with serving(limits=Limits(connections=3)) as receiver, ExitStack() as stack:
        channels = [stack.enter_context(connect(receiver)) for _ in range(3)]
        for channel in channels:
            call(channel)
        with connect(receiver) as beyond:  # and then gone: it would try again, and take the place that gets free
            assert refused(beyond).code() is grpc.StatusCode.UNAVAILABLE
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=WAIT_S) as plain:
            rest(plain)
        for channel in channels:
            call(channel)
        channels[0].close()
        again = stack.enter_context(connect(receiver))
        wait_until("the place is free", lambda: answered(again))


@pytest.mark.parametrize("sent", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_a_connection_that_is_not_taken_up_is_closed(sent: bytes) -> None:
    with (
        serving(limits=Limits(header_s=0.5)) as receiver,
        socket.create_connection(("127.0.0.1", receiver.port), timeout=WAIT_S) as half_open,
    ):
        half_open.sendall(sent)
        while half_open.recv(4096):  # its settings, its good-bye, and then the end
            pass


def test_an_idle_connection_is_closed_and_its_client_comes_back() -> None:
    with serving(limits=Limits(idle_connection_s=0.5)) as receiver, connect(receiver) as channel:
        states: list[grpc.ChannelConnectivity] = []
        heard = states.append
        channel.subscribe(heard)
        call(channel)
        wait_until("closed", lambda: grpc.ChannelConnectivity.IDLE in states[1:])
        channel.unsubscribe(heard)  # gRPC's thread that asks for the state fails if it asks a closed channel
        call(channel)


def test_metadata_has_a_limit() -> None:
    with serving(limits=Limits(concurrent_exports=2, queued_exports=2)) as receiver, connect(receiver) as channel:
        call(channel, padding=MAX_METADATA_BYTES // 2)
        assert refused(channel, padding=MAX_METADATA_BYTES + 1).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        call(channel)


def test_a_connection_survives_any_number_of_refusals(tmp_path: Path) -> None:
    """gRPC counts an RPC against its connection for as long as anything holds it, a cycle of garbage too."""
    (tmp_path / "tokens").write_text(f"{SECRET}\n")
    limits = Limits(concurrent_exports=2, queued_exports=2, message_bytes=2**16)
    good = f"Bearer {SECRET}"
    behind = FakeEvaluator()

    def accept(raw: bytes, _sender: Sender) -> bytes:
        if raw == b"busy":
            raise BusyError("not now")
        return behind(raw)

    gc.disable()
    try:
        with (
            serving(accept, tokens=Tokens(tmp_path / "tokens"), limits=limits) as receiver,
            connect(receiver) as channel,
        ):
            for raw, token, code in (
                (b"busy", good, grpc.StatusCode.RESOURCE_EXHAUSTED),
                (RAW, "Bearer no", grpc.StatusCode.UNAUTHENTICATED),
                (b"\xff", good, grpc.StatusCode.INVALID_ARGUMENT),
                (bytes(2**17), good, grpc.StatusCode.RESOURCE_EXHAUSTED),
            ):
                for _ in range(8):
                    error = refused(channel, raw, token=token)
                    assert error.code() is code
                    del error
            call(channel, token=good)
    finally:
        gc.enable()


def test_tokens(tmp_path: Path) -> None:
    behind = FakeEvaluator()
    path = tmp_path / "tokens"
    path.write_text(f"{SECRET}\n")
    tokens = Tokens(path)
    with serving(behind, tokens=tokens) as receiver, connect(receiver) as channel:
        for wrong in (None, "", "Bearer", "Bearer ", f"Basic {SECRET}", "Bearer a-token-of-another", SECRET):
            error = refused(channel, token=wrong)
            assert (error.code(), retry_s(error)) == (grpc.StatusCode.UNAUTHENTICATED, None)
            assert SECRET not in error.details()
        assert behind.messages == []
        call(channel, token=f"Bearer {SECRET}")
        call(channel, token=f"bearer {SECRET}")
        path.write_text("another-token-of-this-test\n")
        tokens.reload()
        assert refused(channel, token=f"Bearer {SECRET}").code() is grpc.StatusCode.UNAUTHENTICATED
        call(channel, token="Bearer another-token-of-this-test")
    assert len(behind.messages) == 3


def test_no_token_no_thread(tmp_path: Path) -> None:
    """A call without a token is refused before its message is read."""
    (tmp_path / "tokens").write_text(f"{SECRET}\n")
    stop = Event()
    limits = Limits(concurrent_exports=1, queued_exports=1)
    with serving(tokens=Tokens(tmp_path / "tokens"), limits=limits) as receiver, connect(receiver) as channel:
        for _ in range(5):
            with pytest.raises(grpc.RpcError) as raised:
                dawdle(channel, stop).result(timeout=WAIT_S)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        call(channel, token=f"Bearer {SECRET}")
    stop.set()


def test_pings_without_end_are_stopped() -> None:
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_sent_ping_interval_without_data_ms", 100),
    ]
    with serving() as receiver, grpc.insecure_channel(str(receiver.address), options=options) as channel:
        states: list[grpc.ChannelConnectivity] = []
        heard = states.append
        channel.subscribe(heard)
        call(channel)
        wait_until("sent away", lambda: set(states[1:]) & {grpc.ChannelConnectivity.IDLE})
        channel.unsubscribe(heard)  # as above
        call(channel)
