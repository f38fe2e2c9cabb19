"""Names of the GenAI attributes and histograms that differ between versions of the conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from otel_llm import semconv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.export.records import AttributeValue

Names = Literal["1.41", "old", "new", "both"]

NAMES: Final[tuple[Names, ...]] = ("1.41", "old", "new", "both")
"""Versions of the conventions: 1.41, 1.36 (`old`), those after 1.41 (`new`), and every name of them all."""
OLD: Final[Mapping[str, str]] = {semconv.GEN_AI_PROVIDER_NAME: semconv.GEN_AI_SYSTEM}
"""Name to that of 1.36, of the attributes that were renamed since."""
NEW_METRICS: Final[Mapping[str, str]] = {
    semconv.CLIENT_DURATION: "gen_ai.client.inference.duration",
    semconv.CLIENT_FIRST_CHUNK: "gen_ai.client.inference.time_to_first_chunk",
    semconv.CLIENT_OUTPUT_CHUNK: "gen_ai.client.inference.time_per_output_chunk",
}
"""Name to that after 1.41, of the histograms that were renamed."""


def renamed_metric(name: str, names: Names) -> tuple[str, ...]:
    """Return the names of a histogram."""
    new = NEW_METRICS.get(name)
    if new is None or names in ("1.41", "old"):
        return (name,)
    return (new,) if names == "new" else (name, new)


def named(attributes: Mapping[str, AttributeValue], names: Names) -> dict[str, AttributeValue]:
    """Return attributes under the names of a version, or under all names."""
    if names in ("1.41", "new"):
        return dict(attributes)
    old = {OLD.get(key, key): value for key, value in attributes.items()}
    return old if names == "old" else {**attributes, **old}
