"""The public import paths are those that README, docs and examples show, and they are these."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from otel_llm import semconv

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/**/*.md"))]
PROGRAMS = sorted(ROOT.glob("examples/**/*.py"))
PACKAGES = {path.parent.name for path in ROOT.glob("otel_llm/*/__init__.py")}
BLOCK = re.compile(r"^ *```py(?:thon)?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^ *>>> (from .*)", re.MULTILINE)
WRITTEN = re.compile(r"\botel_llm(?:\.[A-Za-z]\w*){2,}")
"""A path in prose, on a command line, or in a file of settings."""
RUN = re.compile(r"-m[\", ]+(otel_llm(?:\.\w+)*)")
ON_THE_WIRE = {name for name in vars(semconv).values() if isinstance(name, str)}

PUBLIC = {
    "otel_llm.actions.delivery.signing": "SignatureError verify",
    "otel_llm.actions.execute.action_receiver": "ActionReceiver ActionRequest",
    "otel_llm.audit": "load_streams",
    "otel_llm.audit.compare.bootstrap": "Drawing",
    "otel_llm.audit.compare.comparison": "",
    "otel_llm.audit.compare.sweep": "",
    "otel_llm.audit.compare.tiers": "",
    "otel_llm.audit.input.stream_batch": "STREAMS",
    "otel_llm.audit.kernel.judge_batch": "judge_batch",
    "otel_llm.audit.load": "",
    "otel_llm.audit.report.charts.delivery_chart": "timeline_figure",
    "otel_llm.audit.report.charts.line_chart": "pen",
    "otel_llm.audit.report.charts.timeline": "build",
    "otel_llm.audit.report.delivery_sections": "Chosen",
    "otel_llm.audit.report.html_page": "page picture text",
    "otel_llm.audit.report.report": "build render render_deliveries",
    "otel_llm.audit.report.saved": "load_saved",
    "otel_llm.audit.spark": "",
    "otel_llm.backtest.backtest": "VERBS backtest",
    "otel_llm.backtest.backtest_evaluator": "Terms",
    "otel_llm.backtest.journal_recordings": "Recording",
    "otel_llm.bench.recording.run_folder": "WARMUP",
    "otel_llm.cli.main": "",
    "otel_llm.cli.output.progress": "counting",
    "otel_llm.collector.settings": "Limits",
    "otel_llm.core": "",
    "otel_llm.demo.children": "Child",
    "otel_llm.demo.demo_children": "LISTENING OFFLINE START_S collector quiet_environment telemetry vllm_command "
    r"vllm_environment vllm_url",
    "otel_llm.demo.paced_server": "",
    "otel_llm.export.records": "version",
    "otel_llm.instrumentation.asgi": "StreamMiddleware",
    "otel_llm.instrumentation.wsgi": "StreamMiddleware",
    "otel_llm.journal.records": "records_since",
    "otel_llm.formats.io.journal_format": "frame",
    "otel_llm.formats.records": "DEFAULT_TENANT StreamKey",
    "otel_llm.rules.decisions.decision_records": "Decision",
    "otel_llm.rules.docs.facts_page": "",
    "otel_llm.rules.docs.lints_page": "",
    "otel_llm.rules.engine.rule_engine": "RuleEngine",
    "otel_llm.rules.files.load": "load_rules",
    "otel_llm.rules.files.ruleset": "RuleSet",
    "otel_llm.rules.files.shipped": "shipped_rules_dir",
    "otel_llm.rules.files.slo_file": "load_slo",
    "otel_llm.scheduling": "Job Plan anneal exact load_profile",
    "otel_llm.scheduling.annealing": "Predictor SCHEDULES evaluate in_order",
    "otel_llm.scheduling.annealing.prediction": "Profile",
    "otel_llm.scheduling.output_lengths": "OutputLengths vary",
    "otel_llm.scheduling.polyserve": "",
    "otel_llm.scheduling.profiles.grid": "COLUMNS",
    "otel_llm.scheduling.profiles.profile": "Profile",
    "otel_llm.scheduling.scenario.figures": "RunFigures figures_of",
    "otel_llm.scheduling.scenario.running": "drawn_workload run_scenario",
    "otel_llm.scheduling.scenario.scenario": "Scenario",
    "otel_llm.scheduling.scenario.sweep": "load_runs",
    "otel_llm.scheduling.simulator.engine": "Fleet SimulatedRun simulate",
    "otel_llm.scheduling.simulator.instance": "Instance",
    "otel_llm.scheduling.simulator.placing": "PLACEMENTS",
    "otel_llm.scheduling.simulator.polyserve_placing": "PolyServePlacement",
    "otel_llm.scheduling.simulator.simulated_request": "SimulatedRequest",
    "otel_llm.scheduling.workload.lengths": "PercentileLengths",
    "otel_llm.scheduling.workload.workload": "Workload",
    "otel_llm.shared.formatting": "number seconds share",
    "otel_llm.slo.classes": "SloClass",
    "otel_llm.slo.exact": "ExactSum",
    "otel_llm.slo.ledger": "window_charges",
    "otel_llm.slo.request": "judge stalls",
    "otel_llm.slo.stream": "Stream",
}
"""By module the names that are shown; the module itself is shown if it has none."""


def imported(source: str) -> Iterator[str]:
    """Yield the paths of ours that code imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "otel_llm":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "otel_llm")


def written(text: str) -> Iterator[str]:
    """Yield the paths of ours that a text names or runs."""
    yield from RUN.findall(text)
    found = (match.removesuffix(".py") for match in WRITTEN.findall(text))
    yield from (path for path in found if path.split(".")[1] in PACKAGES and path not in ON_THE_WIRE)


def shown() -> set[str]:
    pages = [path.read_text(encoding="utf-8") for path in PAGES]
    programs = [path.read_text(encoding="utf-8") for path in PROGRAMS]
    blocks = [textwrap.dedent(block) for page in pages for block in (*BLOCK.findall(page), *SESSION.findall(page))]
    return {path for source in (*blocks, *programs) for path in imported(source)} | {
        path for text in (*pages, *programs) for path in written(text)
    }


def test_the_search_for_paths_finds_them() -> None:
    code = "import otel_llm.audit\nfrom otel_llm.slo.stream import Stream as S\nfrom os import path\nimport ast"
    assert list(imported(code)) == ["otel_llm.audit", "otel_llm.slo.stream.Stream"]
    text = "`python -m otel_llm.core`, `otel_llm.slo.stream.Stream`, `otel_llm.slo.class`, `otel_llm.gpu.name`"
    assert list(written(text)) == ["otel_llm.core", "otel_llm.slo.stream.Stream"]


def test_public_paths_are_these() -> None:
    public = {f"{module}.{name}" for module, names in PUBLIC.items() for name in names.split()}
    modules = {module for module, names in PUBLIC.items() if not names}
    packages = {path.rpartition(".")[0] for path in public | modules}
    packages |= {package.rpartition(".")[0] for package in packages}
    assert (public | modules) - shown() == set(), "shown nowhere: not public any more"
    assert shown() - public - modules - packages == set(), "shown and not pinned: decide whether it shall be public"


def test_each_public_path_is_one_module_with_its_names() -> None:
    for module, names in PUBLIC.items():
        found = import_module(module)
        assert [name for name in names.split() if not hasattr(found, name)] == [], module
