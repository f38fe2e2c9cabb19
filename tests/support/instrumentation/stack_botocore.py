"""Bedrock's `converse_stream` over botocore in the matrix."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import botocore.session
from botocore.config import Config
from support.instrumentation.matrix import MODEL, Stack
from support.patience import WAIT_S
from support.sse_server import Raw, Step
from support.wires import bedrock

ACCESS: dict[str, Any] = {
    "region_name": "us-east-1",
    "aws_access_key_id": "AKIDEXAMPLE",
    "aws_secret_access_key": "secret",
    "config": Config(retries={"max_attempts": 0}, read_timeout=WAIT_S),
}
KIND = "converse"
MESSAGES: list[Any] = [{"role": "user", "content": [{"text": "hello"}]}]


def names_model(params: dict[str, Any], **_: Any) -> None:
    """Put the model into the body as well, if the server of the matrix looks for it."""
    params["body"] = json.dumps({**json.loads(params["body"]), "model": MODEL}).encode()


class ConverseStream(Stack):
    """`converse_stream`."""

    name = "botocore"
    modes = ("sync",)
    # One reads from an iterator over the stream: dropping it is leaving the loop, whatever becomes of the stream.
    outcomes: ClassVar[dict[str, str]] = {"gc": "cancelled"}

    def before(self) -> Sequence[Step]:
        return [Raw(frame) for frame in bedrock.before(KIND)]

    def words(self, count: int) -> Sequence[Step]:
        return [Raw(bedrock.token(KIND, f"w{i} ")) for i in range(count)]

    def after(self) -> Sequence[Step]:
        return [Raw(frame) for frame in bedrock.after(KIND, 6)]

    def error(self) -> Sequence[Step]:
        return [Raw(bedrock.error())]

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        client = botocore.session.Session().create_client("bedrock-runtime", endpoint_url=url, **ACCESS)
        client.meta.events.register("before-call.bedrock-runtime", names_model)
        yield client
        client.close()

    def pulls(self, stream: Any) -> Iterator[Any]:
        return self.items(stream)

    @contextlib.contextmanager
    def entered(self, client: Any) -> Iterator[Any]:
        with contextlib.closing(self.open(client)) as stream:
            yield stream

    def closed(self, stream: Any) -> object:
        return stream._raw_stream.closed

    def open(self, client: Any) -> Any:
        return client.converse_stream(modelId=MODEL, messages=MESSAGES)["stream"]


STACKS = [ConverseStream()]
