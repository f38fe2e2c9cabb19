"""The report's section on a comparison with a baseline: what changed, how sure that is, and what the gate decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.audit.compare import comparison_lines
from otel_llm.audit.report.html_page import table, text

if TYPE_CHECKING:
    from otel_llm.audit.compare.comparison import Comparison
    from otel_llm.audit.compare.gate import Decision

_VERDICTS: Final = {"worse": "bad", "better": "good", "held": "good"}


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison: the baseline's paths, the changes, and the gate's decisions, None without a gate."""

    baseline: tuple[str, ...]
    found: Comparison
    decisions: tuple[Decision, ...] | None = None


def body(compared: Compared | None) -> str:
    """Return the tables and sentences, "" without a comparison."""
    if compared is None:
        return ""
    names = ", ".join(f"<code>{text(one)}</code>" for one in compared.baseline)
    parts = [f"<p>old: {names}; new: the recording of this report.</p>"]
    if compared.decisions is not None:
        parts.append(f"<p class='lead'>{text(_capital(comparison_lines.gate_sentence(compared.decisions)))}.</p>")
        rows = comparison_lines.gate_lines(compared.decisions)
        parts.append(table(comparison_lines.GATE_HEADINGS, rows, text_columns=(5,), marks=_VERDICTS))
    for title, changes in comparison_lines.groups(compared.found.changes):
        rows = comparison_lines.lines(changes)
        parts.append(table(comparison_lines.HEADINGS, rows, caption=title, text_columns=(7,), marks=_VERDICTS))
    notes = (*compared.found.notes, comparison_lines.method(compared.found))
    return "".join(parts) + "".join(f"<p class='quiet'>{text(_capital(note), 1000)}</p>" for note in notes)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
