"""The facts of a request at its commit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from otel_llm import semconv
from otel_llm.instrumentation.segments.choices import Choices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_llm.export.records import AttributeValue, Origin
    from otel_llm.instrumentation.segments.choices import Reader
    from otel_llm.instrumentation.segments.model_chunks import KnownModels, ModelChunks
    from otel_llm.instrumentation.segments.token_estimate import Estimates


@dataclass(frozen=True, slots=True)
class Request:
    """The facts of a request at its commit.

    `commit_ns` is monotonic; `offset_ns` added to a monotonic time makes unix ns, the one anchor that the request
    keeps. `ours` are attributes under `otel_llm.` and `gen_ai` all others, both for segment 0 and the request span;
    `span_only` those for the request span alone.
    `says_complete`: the server declares each choice complete, so a body that ends before it was cut off. `server`:
    measured where it is served, not where it is read; `gpus`: GPUs of this machine may serve it, and their use is
    recorded. `stack`: the hook that saw the request, by its name in `setup.STACKS` if it has one.
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

    def learned(self, late: Mapping[str, AttributeValue]) -> Request:
        """Return the request with attributes that were learned since its commit; a model is in its name too."""
        ours = {name: value for name, value in late.items() if name.startswith(f"{semconv.SCOPE_NAME}.")}
        gen_ai = {name: value for name, value in late.items() if name not in ours}
        known = self.gen_ai.get(semconv.GEN_AI_REQUEST_MODEL)
        model = gen_ai.get(semconv.GEN_AI_REQUEST_MODEL)
        return replace(
            self,
            name=self.name if model in (None, known) else f"{self.name} {model}",
            ours={**self.ours, **ours},
            gen_ai={**self.gen_ai, **gen_ai},
        )

    def streams(
        self,
        origin: Origin,
        getrandbits: Callable[[int], int],
        identity: Mapping[str, AttributeValue],
        reader: Reader,
        estimates: Estimates,
    ) -> Choices:
        """Return the streams of its choices, committed with it."""
        return Choices(
            self.choices,
            self.commit_ns + self.offset_ns,
            self.offset_ns,
            origin,
            getrandbits,
            identity,
            reader,
            estimates,
        )

    def model_chunks(self, models: KnownModels, stated: str | None) -> ModelChunks:
        """Return what is known of the chunks of the model that responds, by its name if the reply stated it."""
        server = self.gen_ai.get(semconv.SERVER_ADDRESS) or self.ours.get(semconv.INSTANCE) or ""
        model = stated or self.gen_ai.get(semconv.GEN_AI_REQUEST_MODEL) or ""
        return models.of(str(server), str(model))
