"""The Dockerfile's steps, the chart's pods and the compose file's services, run without an engine: in namespaces of ours.

What an engine would do is done by `support/deployment/container_init.py`: the image's files at their places, another user,
no privileges, a root file system that cannot be written to. What only an engine can show (layers, pulling, its builder's
own reading of the Dockerfile) is not.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import environment, wait_until
from support.deployment.charts import rendered, settings_of
from support.deployment.containers import UID, Mount, Network, Running, network
from support.deployment.dockerfile import Stage, is_sent, read_stages
from support.integration.uv_command import UV, installed_or_skipped
from support.otlp import T0_NS, export, stream_spans

from otel_llm import semconv

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "collector" / "docker" / "Dockerfile"
COMPOSE = ROOT / "collector" / "compose" / "compose.yaml"
PLAIN = {"OTEL_LLM_CORE": "plain"}
"""Compiled for every processor the kernels take 20 s, so the suite leaves that step out. `OTEL_LLM_IMAGE=whole` takes it."""
WHOLE = os.environ.get("OTEL_LLM_IMAGE") == "whole"
TOKEN = "0123456789abcdef0123456789abcdef"

pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    return read_stages(DOCKERFILE)


@dataclass(frozen=True)
class Image:
    """What the steps of the Dockerfile have made: the folder of /opt/otel-llm, and its stages."""

    opt: Path
    stages: dict[str, Stage]

    def mounts(self) -> list[Mount]:
        return [Mount(self.opt, "/opt/otel-llm"), Mount(uv_store(), str(uv_store()))]

    def environment(self) -> dict[str, str]:
        env = {"PATH": "/usr/bin:/bin"} | self.stages["base"].environment()
        env["PATH"] = env["PATH"].replace("$PATH", "/usr/bin:/bin")
        return env if WHOLE else env | PLAIN


def uv_store() -> Path:
    """Return the folder of uv's packages: the environment in the image has links into it rather than copies."""
    return Path(subprocess.run([UV, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip())


def test_every_copied_source_is_there_and_sent_to_the_builder(stages: dict[str, Stage]) -> None:
    ignore_file = DOCKERFILE.with_name("Dockerfile.dockerignore")
    sources = [source.rstrip("/") for stage in stages.values() for sources, _ in stage.copies() for source in sources]
    assert len(sources) > 5
    for source in sources:
        assert (ROOT / source).exists(), source
        assert is_sent(source, ignore_file), source
    for other in (".venv-vllm", ".git", "demo-out", "docs", "examples/h200", "otel_llm/__pycache__", ".venv/lib"):
        assert not is_sent(other, ignore_file), other


@pytest.fixture(scope="module")
def image(stages: dict[str, Stage], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Run the steps of the stages `build` and `demo-build` as they stand, but for uv in place of pip."""
    folder = tmp_path_factory.mktemp("image")
    opt, source, store = folder / "opt", folder / "src", uv_store()
    opt.mkdir()
    for one, target in stages["build"].copies():
        for name in one:
            path = ROOT / name.rstrip("/")
            place = source / target / (path.name if not path.is_dir() else "")
            if path.is_dir():
                shutil.copytree(path, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)
    env = environment() | {"UV_LINK_MODE": "symlink", "UV_CACHE_DIR": str(store), "HOME": "/tmp"}
    env["PATH"] = f"{sys.base_prefix}/bin:/usr/bin:/bin"
    mounts = [
        *(Mount(opt, "/opt/otel-llm", writable=True), Mount(source, "/src", writable=True), Mount(Path("/etc"), "/etc")),
        *(Mount(store, str(store), writable=True), Mount(Path(UV), "/tools/uv"), Mount(folder, "/tmp", writable=True)),
    ]
    for step in (*stages["build"].texts("RUN"), *stages["demo-build"].texts("RUN")):
        words = step.replace("/opt/otel-llm/bin/pip install --no-cache-dir", "/tools/uv pip install -q -p /opt/otel-llm")
        if not WHOLE:
            words = words.replace("python -m otel_llm.core", "python -c ''")
        done = run_as_root(f"cd /src && {words}", mounts, env, folder)
        installed_or_skipped(done)
    yield Image(opt, stages)


def run_as_root(
    script: str, mounts: list[Mount], env: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a step of a build: as root, with this machine's network and an /etc that can be read."""
    from support.deployment.containers import INIT, system_mounts

    spec = {
        "root": str(folder / "root"),
        "binds": [one.words() for one in (*system_mounts()[3:], *mounts)],
        "files": {},
        "uid": 0,
        "cwd": "/",
        "command": ["/bin/sh", "-ec", script],
        "env": env,
    }
    (folder / "root").mkdir(exist_ok=True)
    command = ["unshare", "-m", sys.executable, str(INIT), json.dumps(spec)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
