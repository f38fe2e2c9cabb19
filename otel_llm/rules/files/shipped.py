"""The paths of the rule files and SLO classes that ship with the package."""

from __future__ import annotations

from pathlib import Path


def shipped_rules_dir() -> Path:
    """Return the folder of the shipped files: in the installed package, or `rules/` of the repository.

    Raises FileNotFoundError if neither exists (a broken installation).
    """
    packaged = Path(__file__).parents[1] / "shipped"
    for folder in (packaged, Path(__file__).parents[3] / "rules"):
        if (folder / "slo.yaml").is_file():
            return folder
    raise FileNotFoundError(f"the shipped rule files are missing from {packaged}: reinstall otel-llm")


def shipped_slo_file() -> Path:
    """Return the SLO file that is used when none is given."""
    return shipped_rules_dir() / "slo.yaml"
