"""A batch is tried again while the failure may pass, for two minutes at most, on a clock that the test turns."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext
from support.otlp_receiver import Answer, GrpcReceiver, HttpReceiver
from support.patience import WAIT_S

from otel_llm.export.delivery import RETRY_FOR_S, OtlpDelivery, otlp_delivery
from otel_llm.export.outbox import Outbox
from otel_llm.export.records import Origin, Segment
from otel_llm.export.settings import OtlpSettings
from otel_llm.export.transport.attempt import Attempt

BATCH = [Segment(Origin(SpanContext(1, 2, is_remote=False), Resource({})), 3, 4, 5, [], None, {})] * 4


class Scripted:
    """A sender with prepared answers, and a clock that only pauses turn."""

    def __init__(self, *answers: Attempt) -> None:
        self.answers = list(answers)
        self.now_s = 0.0
        self.pauses: list[float] = []
        self.reasons: list[str] = []
        self.closing_after: int | None = None

    def send(self, payload: bytes) -> Attempt:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def pause(self, seconds: float, reason: str) -> bool:
        self.pauses.append(seconds)
        self.reasons.append(reason)
        self.now_s += seconds
        return len(self.pauses) != self.closing_after

    def close(self) -> None:
        pass

    def forget(self) -> None:
        pass

    def deliver(self, times: int = 1) -> tuple[int, str]:
        delivery = OtlpDelivery(self, lambda: self.now_s)
        return [delivery.deliver(BATCH, self.pause) for _ in range(times)][-1]


FINE = Attempt("accepted")
AWAY = Attempt("retry", "away")


def test_what_passes_is_waited_for() -> None:
    sender = Scripted(AWAY, AWAY, AWAY, FINE)
    assert sender.deliver() == (0, "")
    assert [round(pause) in (2**k, 2**k - 1, 2**k + 1) for k, pause in enumerate(sender.pauses)] == [True] * 3


def test_the_servers_word_goes_before_our_own() -> None:
    sender = Scripted(Attempt("retry", "busy", after_s=7.5), FINE)
    assert sender.deliver() == (0, "")
    assert sender.pauses == [7.5]


def test_what_does_not_pass_is_dropped_at_once() -> None:
    sender = Scripted(Attempt("refused", "HTTP 400"))
    assert sender.deliver() == (4, "HTTP 400")
    assert sender.pauses == []


def test_after_two_minutes_it_is_too_late() -> None:
    sender = Scripted(AWAY)
    assert sender.deliver() == (4, "away")
    assert RETRY_FOR_S - 20 < sum(sender.pauses) <= RETRY_FOR_S


def test_each_pause_has_its_reason() -> None:
    sender = Scripted(AWAY, AWAY, FINE, FINE, Attempt("retry", "gone"), FINE)
    assert sender.deliver(3) == (0, "")
    assert sender.reasons == ["away", "away", "gone"]


def test_a_server_that_asks_for_an_hour_is_not_waited_for() -> None:
    sender = Scripted(Attempt("retry", "busy", after_s=3600.0))
    assert sender.deliver() == (4, "busy")
    assert sender.pauses == []


def test_a_process_that_ends_does_not_wait() -> None:
    sender = Scripted(AWAY)
    sender.closing_after = 1
    assert sender.deliver() == (4, "away")
    assert len(sender.pauses) == 1


def test_rejected_spans_are_dropped_ones() -> None:
    assert Scripted(Attempt("accepted", "too many", rejected=3)).deliver() == (3, "too many")
    assert Scripted(Attempt("accepted", "too many", rejected=99)).deliver() == (4, "too many")


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_an_endpoint_that_comes_back_gets_everything(protocol: Any) -> None:
    receiver: GrpcReceiver | HttpReceiver = GrpcReceiver() if protocol == "grpc" else HttpReceiver()
    with receiver:
        if isinstance(receiver, GrpcReceiver):
            import grpc

            settings = OtlpSettings("grpc", f"127.0.0.1:{receiver.port}")
            at_once = (("google.rpc.retryinfo-bin", b"\x0a\x00"),)
            receiver.answers += [Answer(grpc.StatusCode.UNAVAILABLE, at_once)] * 2
        else:
            settings = OtlpSettings("http/protobuf", f"{receiver.endpoint}/v1/traces")
            receiver.answers += [Answer(503, (("Retry-After", "0"),))] * 2
        outbox = Outbox(otlp_delivery(settings))
        outbox.put(BATCH)
        assert outbox.flush(WAIT_S)
        assert (len(receiver.spans()), receiver.attempts, outbox.dropped) == (4, 3, 0)
        assert outbox.close(WAIT_S)
