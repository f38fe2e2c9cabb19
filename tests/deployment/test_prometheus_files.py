"""The files of `collector/prometheus`: what `otel-llm rules prometheus` writes, and what Debian's promtool says."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.integration.dashboards import queries, variables
from support.integration.interop_prometheus import program

from otel_llm.rules.files.slo_file import load_slo
from otel_llm.rules.prometheus.class_rules import PrometheusSettings, prometheus_rules

FOLDER = Path(__file__).parents[2] / "collector" / "prometheus"
CONFIG = FOLDER / "prometheus.yml"
RULES = FOLDER / "rules" / "otel-llm.rules.yml"


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run([program("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def jobs() -> dict[str, dict[str, Any]]:
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    return {one["job_name"]: one for one in config["scrape_configs"]}


def test_the_rules_are_what_is_written_for_the_classes_that_ship() -> None:
    assert RULES.read_text(encoding="utf-8") == prometheus_rules(load_slo()).text, (
        f"otel-llm rules prometheus > {RULES}; read the difference"
    )


def test_replicas_keep_their_label_and_targets_have_one_of_their_own() -> None:
    """With `honor_labels`, two collectors that see one replica write to one series, but for a label of the target."""
    assert jobs().keys() == {PrometheusSettings().job, "otel-llm-relay"}
    for job, label in (("otel-llm", "collector"), ("otel-llm-relay", "relay")):
        assert jobs()[job]["honor_labels"] is True
        assert {"source_labels": ["__address__"], "target_label": label} in jobs()[job]["relabel_configs"]


def test_promtool_takes_the_configuration_and_the_rules() -> None:
    promtool("check", "config", CONFIG)
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


@pytest.mark.parametrize("path", sorted((FOLDER / "tests").glob("*.yml")), ids=lambda path: path.name)
def test_promtool_tests_the_rules(path: Path) -> None:
    promtool("test", "rules", path)


def test_promtool_reads_every_expression_of_the_dashboards(tmp_path: Path) -> None:
    rules = [{"record": f"q{at}", "expr": one.asked({})} for at, one in enumerate([*queries(), *variables()])]
    assert len(rules) > 150
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": rules}]}), encoding="utf-8")
    promtool("check", "rules", "--lint=none", tmp_path / "rules.yml")
