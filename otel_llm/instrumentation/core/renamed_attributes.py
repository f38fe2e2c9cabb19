"""Old and new names of the GenAI attributes and histograms that were renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from otel_llm import semconv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.export.records import AttributeValue

Names = Literal["old", "new", "both"]

NAMES: Final[tuple[Names, ...]] = ("old", "new", "both")
RENAMED: Final[Mapping[str, str]] = {
    semconv.GEN_AI_PROVIDER_NAME: semconv.GEN_AI_SYSTEM,
    semconv.GEN_AI_USAGE_INPUT_TOKENS: semconv.GEN_AI_USAGE_PROMPT_TOKENS,
    semconv.GEN_AI_USAGE_OUTPUT_TOKENS: semconv.GEN_AI_USAGE_COMPLETION_TOKENS,
}
"""New name to old: the GenAI attributes that were renamed (conventions up to 1.36 have the old ones)."""
RENAMED_METRICS: Final[Mapping[str, str]] = {
    semconv.CLIENT_DURATION: "gen_ai.client.operation.duration",
    semconv.CLIENT_FIRST_CHUNK: "gen_ai.client.operation.time_to_first_chunk",
    semconv.CLIENT_OUTPUT_CHUNK: "gen_ai.client.operation.time_per_output_chunk",
}
"""New name to old: the histograms that were renamed (conventions up to 1.41 have the old ones)."""


def renamed_metric(name: str, names: Names) -> tuple[str, ...]:
    """Return the names of a histogram."""
    old = RENAMED_METRICS.get(name)
    if old is None or names == "new":
        return (name,)
    return (old,) if names == "old" else (name, old)


def named(attributes: Mapping[str, AttributeValue], names: Names) -> dict[str, AttributeValue]:
    """Return attributes under the old names, the new ones, or both."""
    if names == "new":
        return dict(attributes)
    old = {RENAMED.get(key, key): value for key, value in attributes.items()}
    return old if names == "old" else {**attributes, **old}
