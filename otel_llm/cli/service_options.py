"""The common options of `otel-llm collect` and `otel-llm relay`, and the files that settings name."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

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
    if isinstance(settings, tuple):
        for one in settings:
            yield from named_files(one, written=written)
    elif is_dataclass(settings):
        for field in fields(settings):
            value = getattr(settings, field.name)
            if not isinstance(value, Path):
                yield from named_files(value, written=written)
            elif (field.name in _WRITTEN) is written:
                yield value
