"""The common options of `otel-llm collect` and `otel-llm relay`, and the files that settings name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from otel_llm.config.otlp_target import Headers
from otel_llm.config.settings_model import SettingsModel

if TYPE_CHECKING:
    from collections.abc import Iterator

_WRITTEN: Final = frozenset({"log", "dead_letter"})
"""Fields of the settings with files that a service writes."""

slo_option: Final = click.option(
    "--slo", "slo_path", type=click.Path(path_type=Path), help="SLO classes. [default: the shipped ones]"
)
rules_option: Final = click.option(
    "--rules",
    "rule_paths",
    multiple=True,
    help="Rule file, folder or glob; may be repeated. [default: the shipped rules, in shadow]",
)
decisions_option: Final = click.option(
    "--decisions", type=click.Path(path_type=Path, dir_okay=False), help="Append decision records here (JSON lines)."
)
verdicts_option: Final = click.option(
    "--verdicts",
    type=click.Choice(["bad", "all", "none"]),
    default="bad",
    show_default=True,
    help="Which requests get a line here; docs/glossary.md explains the terms.",
)


def named_files(settings: object, *, written: bool) -> Iterator[Path]:
    """Yield the files that settings name: the ones that a service writes, or the ones that it reads."""
    if isinstance(settings, SettingsModel):
        for name, value in settings:
            if not isinstance(value, Path):
                yield from named_files(value, written=written)
            elif (name in _WRITTEN) is written:
                yield value
    elif isinstance(settings, dict):
        for one in settings.values():
            yield from named_files(one, written=written)
    elif isinstance(settings, Headers) and settings.file is not None and not written:
        yield settings.file
