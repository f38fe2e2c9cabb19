"""Find installed packages that stream replies and are not recorded, with the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.instrumentation.doctor.finding import Finding
from otel_llm.instrumentation.doctor.situation import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.instrumentation.doctor.situation import Situation

_TRACK: Final = "wrap its streams in otel_llm.track(...)"


class Unhooked(NamedTuple):
    """A package that streams in a way that no hook sees."""

    distribution: str
    why: str


UNHOOKED: Final = (
    Unhooked("google-cloud-aiplatform", "Vertex over gRPC is not read"),
    Unhooked("tritonclient", "Triton's streams are not read"),
    Unhooked("xai-sdk", "it streams over gRPC"),
    Unhooked("replicate", "it reads its event streams by GET"),
    Unhooked("llama-cpp-python", "it generates in this process"),
    Unhooked("gpt4all", "it generates in this process"),
    Unhooked("mlx-lm", "it generates in this process"),
)
"""Packages known to stream in ways of their own; realtime voice over websockets has no tokens of text to time."""


def check_unhooked(situation: Situation) -> Iterator[Finding]:  # noqa: ARG001
    """Name each installed package whose streams pass unrecorded."""
    for one in UNHOOKED:
        version = version_of(one.distribution)
        if version is not None:
            text = f"{one.distribution} {version} is not recorded: {one.why}"
            yield Finding(f"unrecorded.{one.distribution}", "warning", text, _TRACK, {"version": version})
