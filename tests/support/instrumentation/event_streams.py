"""The reference for server-sent events, written from the text of the WHATWG HTML Standard, 9.2.6; cuts of a body."""

from __future__ import annotations

import itertools
import re

BOM = b"\xef\xbb\xbf"


def by_the_standard(body: bytes, limit: int) -> tuple[list[bytes], int]:
    """Return the events of a whole body and how many were dropped, as the standard's text reads, and slowly."""
    bom = body.startswith(BOM) * len(BOM)
    body = body.removeprefix(BOM)
    body = re.sub(rb"\r\n|\r", b"\n", body)
    events: list[bytes] = []
    data: list[bytes] = []
    too_long, lost = False, 0
    for number, line in enumerate(body.split(b"\n")[:-1]):
        if not line:
            lost += too_long
            if data and not too_long:
                events.append(b"\n".join(data))
            data, too_long = [], False
            continue
        name, colon, value = line.partition(b":")
        if len(line) + (bom if number == 0 else 0) > limit:
            too_long |= line.startswith(b"data")
        elif name == b"data":
            data.append(value.removeprefix(b" ") if colon else b"")
            too_long |= sum(len(value) + 1 for value in data) > limit
    return events, lost


def cut(body: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(index % (len(body) + 1) for index in at), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]
