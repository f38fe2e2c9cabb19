"""Amazon Bedrock's `ConverseStream` and `InvokeModelWithResponseStream`, of the messages that `bedrock` makes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from support.wires import bedrock
from support.wires.wire import EngineRequest, Frame, Json, Wire

INVOKED = "anthropic"
"""The family of the models that are invoked here."""


def _frames(kind: str) -> Callable[[EngineRequest], Iterator[Frame]]:
    def frames(asked: EngineRequest) -> Iterator[Frame]:
        for data in bedrock.before(kind):
            yield Frame(data)
        for token in asked.tokens:
            yield Frame(bedrock.token(kind, token.text), tokens=1)
        for data in bedrock.after(kind, asked.count()):
            yield Frame(data)

    return frames


def _refused(status: int) -> Json:
    return {"message": f"refused with {status}"}


def _wire(name: str, operation: str, kind: str) -> Wire:
    return Wire(
        name,
        re.compile(rf"/model/(?P<model>[^/]+)/{operation}"),
        _frames(kind),
        whole=lambda _: {},
        error=lambda _: bedrock.error(),
        refused=_refused,
        streams=lambda _: True,
        content_type=lambda _: bedrock.CONTENT_TYPE,
    )


WIRES = (
    _wire("bedrock-converse", "converse-stream", "converse"),
    _wire("bedrock-invoke", "invoke-with-response-stream", INVOKED),
)
