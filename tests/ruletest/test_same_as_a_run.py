"""What a rule test sees is what a collector decides that receives the same: by the backtest of its journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_llm.backtest.backtest import backtest
from otel_llm.backtest.backtest_evaluator import Terms
from otel_llm.backtest.cases.case_parser import read_test_file
from otel_llm.backtest.cases.sender import T0_NS, exports
from otel_llm.backtest.cases.stage import WINDOW_NS, Stage
from otel_llm.backtest.journal_recordings import Recording
from otel_llm.collector.checkpoints import STOPPED_NS
from otel_llm.collector.settings import Limits
from otel_llm.evaluate.timers import Timeouts
from otel_llm.journal.checkpoint import write_resume
from otel_llm.journal.journal import Journal
from otel_llm.rules.decisions.decision_records import Decision

RULES = Path(__file__).parents[2] / "rules"


@pytest.mark.parametrize("name", ["chat.test.yaml", "instances.test.yaml"])
def test_a_journal_of_the_same_exports_decides_the_same(name: str, tmp_path: Path) -> None:
    file = read_test_file(RULES / name)
    made = 0
    for number, test in enumerate(file.tests):
        instants = sorted({one.shape.at for one in test.expectations})
        stage = Stage(file, test)
        assert list(stage.play(instants)) == instants
        folder = tmp_path / str(number)
        with Journal(folder, fsync="never", compress=False) as journal:
            for one in exports(test.scripts, instants[-1]):
                journal.append(one.raw, one.receipt_ns)
        write_resume(folder, {STOPPED_NS: T0_NS + instants[-1]})
        decided: list[Decision] = []
        terms = Terms(file.classes, Limits(), Timeouts(file.lateness_ns, file.lost_after_ns), WINDOW_NS)
        backtest(Recording([folder]), rules=file.rules, terms=terms, decided=decided.extend)
        assert decided == stage.decisions, test.name
        made += len(decided)
    assert made > 3
