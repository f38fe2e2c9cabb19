"""What a test needs and a machine may lack: one table of the reasons for a skip, the remedies and the tiers."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
VLLM = ROOT / ".venv-vllm"
SPARK = ROOT / ".venv-spark"
AIPERF = ROOT / ".venv-aiperf"
GUIDELLM = ROOT / ".venv-guidellm"
INFERENCE_PERF = ROOT / ".venv-inference-perf"
SGLANG_BENCH = ROOT / ".venv-sglang-bench"
HELM = ROOT / ".venv-helm"
OTELCOL = ROOT / ".venv-otelcol"
NODE_PACKAGES = ROOT / ".venv-node"
PHOENIX = Path(os.environ.get("PHOENIX_VENV") or ROOT / ".venv-phoenix")
TRACES = ROOT.parent / "shared" / "traces"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FIRST, SYSTEM, WORLD = "first", "system", "world"


@dataclass(frozen=True)
class Requirement:
    """Something that a test needs: how the reason of a skip begins, how to get it, and the tier of its tests."""

    tier: str
    missing: str
    remedy: str
    present: Callable[[], bool] | None = None
    """None if only the attempt tells: the test's helper then calls `skip_without`."""


def program(*names: str) -> Callable[[], bool]:
    """Return a check that one of the programs is on the path."""
    return lambda: any(shutil.which(name) for name in names)


def environment(folder: Path) -> Callable[[], bool]:
    """Return a check that an environment of the Makefile was made."""
    return (folder / "ready").exists


def package(module: str) -> Callable[[], bool]:
    """Return a check that a package is installed beside the tests."""
    return lambda: find_spec(module) is not None


def installed(names: str) -> str:
    """Return the command that installs packages of Debian."""
    return f"apt-get install --no-install-recommends {names}"


REQUIREMENTS = {
    "vllm": Requirement(WORLD, "no vLLM environment", "make vllm-env", environment(VLLM)),
    "spark": Requirement(WORLD, "no Spark environment", "make spark-env", environment(SPARK)),
    "java": Requirement(WORLD, "no Java", installed("openjdk-17-jre-headless"), program("java")),
    "aiperf": Requirement(WORLD, "no AIPerf environment", "make aiperf-env", environment(AIPERF)),
    "guidellm": Requirement(WORLD, "no GuideLLM environment", "make guidellm-env", environment(GUIDELLM)),
    "inference-perf": Requirement(
        WORLD, "no inference-perf environment", "make inference-perf-env", environment(INFERENCE_PERF)
    ),
    "sglang-bench": Requirement(
        WORLD, "no environment of SGLang's benchmark", "make sglang-bench-env", environment(SGLANG_BENCH)
    ),
    "phoenix": Requirement(WORLD, "no Phoenix", "make phoenix-env", (PHOENIX / "bin" / "phoenix").exists),
    "helm": Requirement(WORLD, "no Helm environment", "make helm-env", environment(HELM)),
    "otelcol": Requirement(WORLD, "no OpenTelemetry Collector", "make otelcol-env", environment(OTELCOL)),
    "compat": Requirement(WORLD, "no compat environments", "make compat-env"),
    "litellm": Requirement(WORLD, "no litellm", "make litellm-env", package("litellm")),
    "aiobotocore": Requirement(WORLD, "no aiobotocore", "pip install aiobotocore", package("aiobotocore")),
    "chdb": Requirement(WORLD, "no chdb", "make clickhouse-env", package("chdb")),
    "sglang_router": Requirement(WORLD, "no router", "pip install sglang-router", package("sglang_router")),
    "vllm_router": Requirement(WORLD, "no router", "pip install vllm-router", package("vllm_router")),
    "sglang-wheel": Requirement(WORLD, "no network to the package index", "run on a machine with an index"),
    "rotel": Requirement(SYSTEM, "no rotel", "pip install rotel", package("rotel")),
    "node": Requirement(SYSTEM, "no Node.js", installed("nodejs npm"), program("node")),
    "node-exporters": Requirement(SYSTEM, "no Node.js exporters", "make node-env", environment(NODE_PACKAGES)),
    "chromium": Requirement(SYSTEM, "no Chromium", installed("chromium"), program(*BROWSERS)),
    "prometheus": Requirement(SYSTEM, "no Prometheus", installed("prometheus"), program("prometheus")),
    "alertmanager": Requirement(
        SYSTEM, "no Alertmanager", installed("prometheus-alertmanager"), program("prometheus-alertmanager")
    ),
    "systemd": Requirement(SYSTEM, "no systemd", installed("systemd"), program("systemd-analyze")),
    "index": Requirement(SYSTEM, "no network to the package index", "run on a machine with an index"),
    "mount-namespace": Requirement(SYSTEM, "no mount namespace", "run as root"),
    "network-namespace": Requirement(SYSTEM, "no network namespace", "run as root"),
    "grafana-sdk": Requirement(
        FIRST, "no grafana-foundation-sdk", "pip install -e '.[dev]'", package("grafana_foundation_sdk")
    ),
    "aiconfigurator": Requirement(
        FIRST, "no aiconfigurator-core", "pip install -e '.[aic]'", package("aiconfigurator_core")
    ),
    "traces": Requirement(
        FIRST,
        "no traces",
        "put the public traces into ../shared/traces; examples/migration-triggers says how",
        (TRACES / "azure_2023_conv.csv").is_file,
    ),
}


def announced_skips() -> tuple[str, ...]:
    """Return the reasons that CONTRIBUTING's table of allowed skips names, as prefixes."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## Allowed skips")[2].partition("\n## ")[0]
    return tuple(re.findall(r"^\| `([^`]+)`", table, flags=re.MULTILINE))


def skip_without(name: str, detail: str = "") -> NoReturn:
    """Skip the test for a requirement that this machine lacks."""
    import pytest  # not where benchmarks use this module

    needed = REQUIREMENTS[name]
    pytest.skip(f"{needed.missing}: {detail or needed.remedy}")


def has(name: str) -> bool:
    """Return whether this machine has a requirement."""
    present = REQUIREMENTS[name].present
    assert present is not None, f"only an attempt tells whether {name} is there"
    return present()


def require(name: str) -> None:
    """Skip the test if this machine lacks a requirement."""
    if not has(name):
        skip_without(name)


def found_program(name: str, *names: str) -> str:
    """Return the path of the first of the programs that is there; skip the test without the requirement `name`."""
    for one in names:
        if path := shutil.which(one):
            return path
    skip_without(name)
