"""The replies that ended before the model was done: cut by their length, or by a content filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.audit.report.html_page import table, text
from otel_llm.audit.report.report_model import by_class
from otel_llm.formats.spans.finish_reasons import CONTENT_FILTER, CUT, LENGTH
from otel_llm.shared.formatting import number, share

if TYPE_CHECKING:
    from otel_llm.audit.report.report_model import ReportModel

LEAD: Final = (
    "These replies completed, and their readers got no end of the text: the model reached its limit of tokens "
    "(length), or a filter stopped it (content_filter). No figure of waiting shows that. Raise the limit "
    "(max_tokens), or look at what is filtered; a rule can watch cut_share_5m."
)


def body(model: ReportModel) -> str:
    """Return the sentences and the table, "" if no reply was cut."""
    reasons = model.requests["finish_reason"].fillna("").to_numpy(dtype=object)
    if not np.isin(reasons, list(CUT)).any():
        return ""
    lines = []
    for name, place, rows in by_class(model.requests):
        mine = reasons[rows]
        by_length, filtered = int((mine == LENGTH).sum()), int((mine == CONTENT_FILTER).sum())
        cut = share((by_length + filtered) / len(rows))
        lines.append((f"{name}, {place}", number(len(rows)), number(by_length), number(filtered), cut))
    headings = ["Class", "Requests", "Cut by length", "Cut by a content filter", "Of all"]
    return f"<p>{text(LEAD, 1000)}</p>" + table(headings, lines)
