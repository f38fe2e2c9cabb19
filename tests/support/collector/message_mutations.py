"""Mutations of valid messages: of their bytes, of protobuf's wire format, of JSON documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

# Source of the wire format: protobuf.dev/programming-guides/encoding.
VARINT, I64, LEN, I32 = 0, 1, 2, 5
EDGES = (0, 1, 2, 127, 128, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its number, wire type and encoding; `inner` if what it holds is itself fields."""

    number: int
    kind: int
    raw: bytes
    inner: tuple[Field, ...] = ()


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def field_of(number: int, kind: int, value: int | bytes) -> Field:
    """Return a field; of LEN the value is what it holds, of I64 and I32 its eight or four bytes."""
    tag = varint(number << 3 | kind)
    if isinstance(value, int):
        return Field(number, kind, tag + varint(value))
    return Field(number, kind, tag + (varint(len(value)) if kind == LEN else b"") + value)


@lru_cache(20_000)
def parse_fields(raw: bytes, depth: int = 0) -> tuple[Field, ...] | None:
    """Return the fields of a message, None if the bytes are none."""
    fields: list[Field] = []
    position = 0
    try:
        while position < len(raw):
            begin = position
            tag, position = _read_varint(raw, position)
            kind, inner = tag & 7, None
            if tag >> 3 == 0 or kind not in (VARINT, I64, LEN, I32):
                return None
            if kind == VARINT:
                _, position = _read_varint(raw, position)
            else:
                size = 8 if kind == I64 else 4
                if kind == LEN:
                    size, position = _read_varint(raw, position)
                held = raw[position : position + size]
                position += size
                if len(held) < size:
                    return None
                inner = parse_fields(held, depth + 1) if kind == LEN and held and depth < 12 else None
            fields.append(Field(tag >> 3, kind, raw[begin:position], inner or ()))
    except IndexError:
        return None
    return tuple(fields)


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = raw[position]
        number |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return number, position
        shift += 7


def mutate_fields(raw: bytes, random: Random) -> bytes:
    """Return a message with some fields changed, dropped, repeated or of another kind; its lengths are right."""
    fields = parse_fields(raw) or ()
    for _ in range(random.randint(1, 3)):
        fields = _mutated(fields, random)
    return b"".join(field.raw for field in fields)


def _mutated(fields: tuple[Field, ...], random: Random) -> tuple[Field, ...]:
    """Return fields with one mutation somewhere at or below them."""
    if not fields:
        return fields
    at = random.randrange(len(fields))
    field = fields[at]
    if field.inner and random.random() < 0.8:
        inner = _mutated(field.inner, random)
        held = b"".join(one.raw for one in inner)
        made = field_of(field.number, LEN, held)
        return (*fields[:at], Field(made.number, LEN, made.raw, inner), *fields[at + 1 :])
    return (*fields[:at], *_instead_of(field, random), *fields[at + 1 :])


def _instead_of(field: Field, random: Random) -> tuple[Field, ...]:
    number = field.number
    match random.randrange(8):
        case 0:
            return ()
        case 1:
            return (field, field)
        case 2:
            return (field,) * random.choice((10, 100))
        case 3:
            return tuple(random.sample(field.inner, len(field.inner)))  # a level of nesting less
        case 4:
            other = random.choice((1, 2, 3, number + 1, 15, 1001, 1002, 2**29 - 1))
            return (field_of(other, LEN, field.raw),)
        case 5:
            return (field_of(number, VARINT, random.choice(EDGES)),)
        case 6:
            return (field_of(number, I64, random.choice(EDGES).to_bytes(8, "little")),)
        case _:
            if random.random() < 0.8:
                held = random.choice((b"", bytes(8), b"\xff" * 16, b"x" * 2000, random.randbytes(16)))
            else:
                held = field.raw
                for _ in range(random.choice((1, 30, 120))):
                    held = field_of(number, LEN, held).raw
            return (field_of(number, LEN, held),)


def mutate_bytes(raw: bytes, random: Random) -> bytes:
    """Return the bytes cut, flipped, moved; lengths within may be wrong."""
    data = bytearray(raw)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(data) + 1)
        match random.randrange(8):
            case 0:
                del data[at:]
            case 1:
                data[at : at + 1] = bytes([random.randrange(256)])
            case 2:
                if data:
                    data[at % len(data)] ^= 1 << random.randrange(8)
            case 3:
                data[at:at] = random.randbytes(random.randint(1, 8))
            case 4:
                data[at : at + random.randint(1, 20)] = b""
            case 5:
                data[at:at] = data[at : at + random.randint(1, 50)]
            case 6:  # a number of ten bytes and more, a length beyond all
                data[at : at + 1] = random.choice((b"\xff" * 9 + b"\x01", b"\xff" * 11, b"\x80" * 9 + b"\x02"))
            case 7:
                data += b"\xff" * random.randint(1, 5)
    return bytes(data)


JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 1e400, 2**63, 2**64, -(2**63) - 1, 10**30, "", "x", "-1", "9" * 25, "Infinity"),
    *([], {}, [None], [[]], {"": None}, {"stringValue": 1}, {"intValue": "x"}, "\ud800", "\x00", "é" * 3000),
)


_DEEP = "@deep@"
_NESTED = ("[" * 40 + "]" * 40, "[" * 5000 + "]" * 5000, '{"arrayValue":{"values":[' * 40 + "]}}" * 40)


def mutate_json(document: str, random: Random) -> bytes:
    """Return a document with some values replaced, or with some of its bytes changed."""
    if random.random() < 0.3:
        return mutate_bytes(document.encode(), random)
    data = json.loads(document)
    for _ in range(random.randint(1, 3)):
        positions = list(_places(data))
        if positions:
            container, key = random.choice(positions)
            _mutate_value(container, key, random)
    text = json.dumps(data, ensure_ascii=random.random() < 0.5)
    return text.replace(f'"{_DEEP}"', random.choice(_NESTED), 1).encode("utf-8", "surrogatepass")


def _places(data: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) within."""
    found: list[tuple[Any, Any]] = []
    waiting = [data]
    while waiting:
        container = waiting.pop()
        keys = container if isinstance(container, dict) else range(len(container))
        for key in list(keys):
            found.append((container, key))
            if isinstance(container[key], (dict, list)):
                waiting.append(container[key])
    return found


def _mutate_value(container: Any, key: Any, random: Random) -> None:
    match random.randrange(5):
        case 0:
            container[key] = deepcopy(random.choice(JUNK))
        case 1:
            del container[key]
        case 2 if isinstance(container, list):
            container.extend([container[key]] * random.choice((1, 20)))
        case 3 if isinstance(container, dict):
            container[random.choice(("kind", "stringValue", "intValue", "values", "spans", "x"))] = container[key]
        case _:
            container[key] = _DEEP if random.random() < 0.2 else [container[key]]


Mutation = Callable[[bytes, Random], bytes]
OF_MESSAGES: tuple[Mutation, ...] = (mutate_fields, mutate_fields, mutate_bytes)
"""What keeps its form gets further in, so there is more of it."""
