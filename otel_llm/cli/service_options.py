"""Options that `otel-llm collect` and `otel-llm relay` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

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
    help="Which requests get a line here; docs/glossary.md explains its words.",
)
