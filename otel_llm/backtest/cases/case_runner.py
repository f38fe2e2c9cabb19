"""Run the tests of a file for `otel-llm rules test`, and describe each result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_llm.backtest.cases.expectations import Difference, differences, seconds, subject_text
from otel_llm.backtest.cases.sender import T0_NS
from otel_llm.backtest.cases.stage import Stage

if TYPE_CHECKING:
    from otel_llm.backtest.cases.case_reader import RuleTest, TestFile
    from otel_llm.backtest.cases.stage import Progress
    from otel_llm.rules.decisions.decision_records import Decision


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one test; `story`: a line on every decision, up to its last expectation."""

    name: str
    differences: tuple[Difference, ...]
    story: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Tell whether all expectations were met."""
        return not self.differences

    def text(self, file: str, *, story: bool = False) -> str:
        """Format the result for people; `story`: with the decisions, which a failure always shows."""
        lines = [f"{'ok  ' if self.passed else 'FAIL'}  {self.name}"]
        for one in self.differences:
            lines += [f"    {file}:{one.line}:{one.column}: {one.what}", f"      exp: {one.expected}"]
            lines.append(f"      got: {one.got}")
        if story or not self.passed:
            lines.append("    what was decided:" if self.story else "    nothing was decided")
            lines += [f"      {line}" for line in self.story]
        return "\n".join(lines)


def run_test(file: TestFile, test: RuleTest, progress: Progress | None = None) -> Result:
    """Run one test; `progress` gets the share that is done, at intervals."""
    stage = Stage(file, test)
    waiting = list(test.expectations)
    found: list[Difference] = []
    for at_ns in stage.play(sorted({one.shape.at for one in waiting}), progress):
        while waiting and waiting[0].shape.at == at_ns:
            found += differences(waiting.pop(0), stage, file.tolerance_ns)
    found.sort(key=lambda one: (one.line, one.column))
    return Result(test.name, tuple(found), tuple(_line(stage, one) for one in stage.decisions))


def _line(stage: Stage, decision: Decision) -> str:
    at = f"{seconds(decision.now_ns - T0_NS)}: {decision.rule} {subject_text(stage.name(decision.subject))}"
    what = decision.state if decision.action is None else f"firing, {decision.action}"
    return f"{at}: {what}: {decision.outcome} (since {seconds(decision.flip_ns - T0_NS)})"
