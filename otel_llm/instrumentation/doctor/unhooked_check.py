"""Installed packages that stream replies and are not recorded, with what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.instrumentation.doctor.finding import Finding
from otel_llm.instrumentation.doctor.situation import version_of
from otel_llm.instrumentation.parse.wires import WIRES
from otel_llm.instrumentation.setup import STACKS
from otel_llm.instrumentation.sse_chunks import api_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.instrumentation.doctor.situation import Situation

_TRACK: Final = "wrap its streams in otel_llm.track(...)"


class Unhooked(NamedTuple):
    """A package that streams over something we do not see.

    It is recorded after all where `path` is an API that is known (the package sits on a hooked HTTP client), or where
    one of `stacks` is hooked.
    """

    distribution: str
    why: str
    path: str | None = None
    stacks: tuple[str, ...] = ()


UNHOOKED: Final = (
    Unhooked("google-genai", "its API is not known", path="/v1beta/models/m:streamGenerateContent"),
    Unhooked("ollama", "its API is not known", path="/api/chat"),
    Unhooked("cohere", "its API is not known", path="/v2/chat"),
    Unhooked("mistralai", "its API is not known", path="/v1/chat/completions"),
    Unhooked("boto3", "Bedrock's event streams are not read", stacks=("botocore", "boto3", "bedrock")),
    Unhooked("aiobotocore", "Bedrock's event streams are not read", stacks=("aiobotocore",)),
    Unhooked("google-cloud-aiplatform", "Vertex over gRPC is not read"),
    Unhooked("tritonclient", "Triton's streams are not read"),
    Unhooked("xai-sdk", "it streams over gRPC"),
    Unhooked("replicate", "it reads its event streams by GET"),
    Unhooked("llama-cpp-python", "it generates in this process"),
    Unhooked("gpt4all", "it generates in this process"),
    Unhooked("mlx-lm", "it generates in this process"),
)
"""What is known to stream by a way of its own; realtime voice over websockets has no tokens of text to time."""


def check_unhooked(situation: Situation) -> Iterator[Finding]:  # noqa: ARG001
    """Name each installed package whose streams pass unrecorded."""
    for one in UNHOOKED:
        version = version_of(one.distribution)
        recorded = (one.path is not None and api_of(one.path, WIRES) is not None) or any(
            name in STACKS for name in one.stacks
        )
        if version is not None and not recorded:
            text = f"{one.distribution} {version} is not recorded: {one.why}"
            yield Finding(f"unrecorded.{one.distribution}", "warning", text, _TRACK, {"version": version})
