"""The kinds of our YAML files, sniffed from their top-level keys, so that an error can name a file given in error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from otel_llm.config.yaml_file import ConfigError, YamlFile

SETTINGS: Final = (
    *("limits", "journal", "decisions", "files", "metrics", "tls", "auth", "cors", "web", "forward", "otlp"),
    *("operators", "receivers", "alertmanager", "alerts", "actions"),
)
"""The keys of the collector's settings, whose schema this layer cannot import; a test compares them."""
KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "groups": ("rules", "give this file with --rules"),
    "rule_files": ("tests of rules", "give this file to `otel-llm rules test`"),
    "tests": ("tests of rules", "give this file to `otel-llm rules test`"),
    "classes": ("SLO classes", "give this file with --slo"),
    **dict.fromkeys(SETTINGS, ("the collector's settings", "give this file with --config")),
}
"""The kind of a file and the option that takes it, by a top-level key that only this kind has."""


def other_kind(file: YamlFile, own: Collection[str], wanted: str) -> ConfigError | None:
    """Return the error for a file of another kind; None if it has a key of its `own`, or no telling key."""
    found = None if file.data.keys() & set(own) else next((key for key in file.data if key in KINDS), None)
    if found is None:
        return None
    what, advice = KINDS[found]
    return file.refuse((found,), f"{what}, and no {wanted}", advice, at_key=True)
