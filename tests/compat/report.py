"""The table of compatibility, as Markdown."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from compat.environments import ROOT
from compat.matrix import ENVIRONMENTS, Case
from compat.runner import Verdict

TABLE = ROOT / "docs" / "compatibility.md"
HEAD = """# Recorded packages and versions

`make compat` writes this page; it is not edited by hand. It makes an environment for each set of packages, runs each
case bare and recorded against one fake server of all wires, and compares what the caller got, what was exported and
what the server saw. A mode is recorded `once` if each streamed reply gave one stream and one request span, with as
many tokens as the server sent, and the request carried their trace. `outcome` counts the ways to end that were recorded
right: the reply completes, its caller leaves, its connection breaks, it brings an error event, it is refused. Unless a
note says otherwise, the caller got the same with and without recording.

How a case is added is said in `tests/compat/README.md`.
"""

BESIDE = """
## Beside other instrumentations

What was tried together, and what comes of a streamed reply. Segments hang from the other's inference span if it is open
when the request leaves. When a suppression counts is said [with all that is not
recorded](stacks/not-recorded.md#suppressed-by-another-instrumentation).

| instrumentation | suppresses | a streamed reply |
|---|---|---|
| Traceloop's, OpenInference's, OpenTelemetry's of the OpenAI SDK | no | once, under their span |
| Logfire 5.4's `instrument_openai()`, `instrument_anthropic()` | inside of the call | once, under their span |
| one that suppresses around the SDK's call, under an open span of the inference | yes | once, under its span |
| one that suppresses around the SDK's call, under no such span | yes | not recorded; one warning for each stack |
| `suppress_instrumentation()` of the application | yes | not recorded; one warning for each stack |
"""

SERVERS = """
## Serving processes

Each streams a model's reply of 40 tokens, 10 ms apart, on to four clients at once, twice, while the OTLP endpoint
(gRPC) answers, accepts and never answers, or refuses. The added times are medians over the second four, less those of
the same server without recording; a noisy machine shows some milliseconds either way.
"""


@dataclass(frozen=True)
class Line:
    """One line of the table: modes of a case that behaved alike."""

    package: str
    version: str
    modes: tuple[str, ...]
    recorded: str
    outcome: str
    note: str

    def cells(self) -> str:
        """Return the line as Markdown."""
        cells = (self.package, self.version, ", ".join(self.modes), self.recorded, self.outcome, self.note)
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def lines_of(case: Case, installed: str, verdicts: Iterable[Verdict], warnings: Sequence[str] = ()) -> list[Line]:
    """Return the lines of a case, its modes in order; `warnings` are what the recorder itself said."""
    by_mode: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_mode.setdefault(verdict.mode, []).append(verdict)
    told = [(mode, _cells(case, mode, ones, warnings)) for mode, ones in by_mode.items()]
    lines = []
    for cells, alike in itertools.groupby(told, key=lambda pair: pair[1]):
        lines.append(Line(case.packages[0], installed, tuple(mode for mode, _ in alike), *cells))
    return lines


def _cells(case: Case, mode: str, verdicts: Sequence[Verdict], warnings: Sequence[str]) -> tuple[str, str, str]:
    """Return what the table says of one mode: recorded, outcome, note."""
    missed = sum(verdict.missed for verdict in verdicts)
    right = sum(not verdict.faults for verdict in verdicts)
    reason = case.reasons.get(mode, case.reasons.get("*", ""))
    if missed == len(verdicts):
        return "no", "-", reason or next(iter(warnings), "") or _faults(verdicts)
    recorded = "once" if missed == 0 and _once(verdicts) else "in part"
    notes = [case.note, reason] if right == len(verdicts) else [case.note, reason, _faults(verdicts)]
    return recorded, f"{right} of {len(verdicts)}", "; ".join(filter(None, notes))


def _once(verdicts: Sequence[Verdict]) -> bool:
    return all(len(verdict.recorded) == len(verdict.sent) for verdict in verdicts)


def _faults(verdicts: Sequence[Verdict]) -> str:
    """Return the faults with the ends that had them, each fault once."""
    found: dict[str, list[str]] = {}
    for verdict in verdicts:
        for fault in verdict.faults:
            ends = found.setdefault(fault, [])
            if verdict.variant not in ends:
                ends.append(verdict.variant)
    return "; ".join(f"{', '.join(ends)}: {fault}" for fault, ends in found.items())


def write(lines: Sequence[Line], servers: Sequence[str], path: Path = TABLE) -> None:
    """Write the page; `servers` is the table of serving processes."""
    text = [HEAD, f"Run with otel-llm {version('otel-llm')} under Python {platform.python_version()}.\n"]
    text.append("| package | version | modes | recorded | outcome | note |\n|---|---|---|---|---|---|")
    text += [line.cells() for line in lines]
    missed = [line for line in lines if line.recorded == "no"]
    text.append("\n## Not recorded\n")
    text += [f"- {line.package} {line.version}, {', '.join(line.modes)}: {line.note}" for line in missed] or [
        "Nothing."
    ]
    text += [BESIDE, SERVERS, *servers]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")


def environments_of(cases: Iterable[Case]) -> list[str]:
    """Return the environments of cases, in the order of the matrix."""
    wanted = {case.environment for case in cases}
    return [name for name in ENVIRONMENTS if name in wanted]
