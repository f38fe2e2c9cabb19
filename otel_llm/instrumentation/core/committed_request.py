"""The facts of a request at its commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.export.records import AttributeValue


@dataclass(frozen=True, slots=True)
class Request:
    """The facts of a request at its commit.

    `commit_ns` is monotonic; `offset_ns` added to a monotonic time makes unix ns, the one anchor that the request
    keeps. `ours` are attributes under `otel_llm.` and `gen_ai` all others, both for segment 0 and the request span;
    `span_only` those for the request span alone. `says_complete`: the server declares each choice complete, so a body
    that ends before it was cut off. `server`: measured where it is served, not where it is read; `gpus`: GPUs of this
    machine may serve it, and their use is recorded. `stack`: the hook that saw the request, by its name in
    `setup.STACKS` where it has one.
    """

    name: str
    commit_ns: int
    offset_ns: int
    choices: int = 1
    ours: Mapping[str, AttributeValue] = field(default_factory=dict)
    gen_ai: Mapping[str, AttributeValue] = field(default_factory=dict)
    span_only: Mapping[str, AttributeValue] = field(default_factory=dict)
    says_complete: bool = False
    server: bool = False
    gpus: bool = True
    stack: str = "other"
