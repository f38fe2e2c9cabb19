"""What our YAML files are, told by their top-level keys: one that is given in another's place is called by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from otel_llm.rules.files.yamlfile import ConfigError, YamlFile

SETTINGS: Final = (
    *("limits", "journal", "decisions", "metrics", "tls", "auth", "cors", "web", "forward", "otlp"),
    *("receivers", "alertmanager", "alerts", "actions", "files"),
)
"""The keys of the collector's settings, whose schema this layer cannot see; a test holds them against it."""
KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "groups": ("rules", "give this file with --rules"),
    "rule_files": ("tests of rules", "give this file to `otel-llm rules test`"),
    "tests": ("tests of rules", "give this file to `otel-llm rules test`"),
    "classes": ("SLO classes", "give this file with --slo"),
    **dict.fromkeys(SETTINGS, ("the collector's settings", "give this file with --config")),
}
"""By a top-level key that only one kind of file has: what the file is, and what takes it."""


def other_kind(file: YamlFile, own: Collection[str], wanted: str) -> ConfigError | None:
    """Return the refusal of a file of another kind; None where it has a key of its `own`, or none that tells."""
    found = None if file.data.keys() & set(own) else next((key for key in file.data if key in KINDS), None)
    if found is None:
        return None
    what, advice = KINDS[found]
    return file.refuse((found,), f"{what}, and no {wanted}", advice, at_key=True)
