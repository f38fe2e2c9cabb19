"""How much of the journal and of decision files a collector keeps, as limits and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.collector.settings import SHARE
from otel_llm.journal.retention import MOST_BYTES, share_of_volume

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.collector.settings import JournalSettings, Settings


def journal_bytes(settings: JournalSettings, folder: Path) -> int | None:
    """Return the limit on the size of a journal in this folder; None: there is none."""
    return share_of_volume(folder) if settings.retain_bytes == SHARE else settings.retain_bytes


def keeping(settings: Settings, folder: Path, *, decisions: bool) -> str:
    """Return one line for the operator; `decisions`: whether there are decision files."""
    most = journal_bytes(settings.journal, folder)
    by_default = settings.journal.retain_bytes == SHARE
    of = "" if not by_default else ", the default" if most == MOST_BYTES else ", a tenth of its volume"
    kept = [f"journal: {_at_most(most)}{of} (journal: {{retain_bytes}})"]
    if decisions:
        kept.append(f"closed decision files: {_at_most(settings.decisions.retain_bytes)} (decisions: {{retain_bytes}})")
    return f"kept of the {'; of the '.join(kept)}; the oldest files go first"


def _at_most(most_bytes: int | None) -> str:
    return "all, until the disk is full" if most_bytes is None else f"at most {most_bytes / 1e9:.3g} GB"
