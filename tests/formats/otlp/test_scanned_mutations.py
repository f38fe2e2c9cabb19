"""Whatever becomes of a message on its way, the scan reads of it what protobuf reads.

Many more mutations: `SEED=7 pytest --hypothesis-profile=long` of this file.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from support.collector.message_mutations import mutate_bytes, mutate_fields
from support.core.core_spans import agree, sent_segment
from support.core.scan_messages import END_NS, messages, mutation, random_message, sent_request, ticks
from support.examples import SEED, examples
from support.otlp import T0_NS, export, token

from otel_llm import semconv


@settings(max_examples=examples(150))
@given(messages(), st.randoms(use_true_random=False))
def test_messages_of_any_shape_and_their_mutations_are_read_the_same(raw: bytes, random: Random) -> None:
    agree(raw)
    agree(mutate_bytes(raw, random))
    agree(mutate_fields(raw, random))


def test_thousands_of_mutations_are_read_the_same() -> None:
    random = Random(SEED)
    columns = requests = 0
    for _ in range(examples(150)):
        whole, other = random_message(random), random_message(random)
        for _ in range(20):
            raw = mutation(whole, other, random)
            for one in (raw, raw + other):
                plain, read = agree(one)
                columns += 0 if plain is None else len(plain)
                requests += read
    assert columns > examples(1000)  # or nothing was tried
    assert requests > examples(500)


def test_every_cut_and_every_flip_of_one_bit_of_a_message() -> None:
    failed = sent_request(request=2, parent=1, attributes={semconv.SEGMENTS: 3, "x": ["a"], "y": 1.5, "z": -1})
    failed.trace_state = "a=b"
    failed.status.code = Status.STATUS_CODE_ERROR
    failed.status.message = "why"
    spans = (
        sent_segment(1, 0, ticks(2), end_ns=END_NS),
        sent_segment(200, 2, [token(T0_NS, kind="tool"), token(T0_NS, count=3)], request=2, end_ns=END_NS),
        failed,
    )
    raw = bytearray(export(*spans, resource={semconv.SERVICE_INSTANCE_ID: "a"}).SerializeToString())
    plain, requests = agree(bytes(raw))
    assert plain is not None
    assert requests == 1
    for at in range(len(raw)):
        agree(bytes(raw[:at]))
        for bit in range(8):
            raw[at] ^= 1 << bit
            agree(bytes(raw))
            raw[at] ^= 1 << bit
