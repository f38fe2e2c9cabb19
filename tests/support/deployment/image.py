"""The image that the Dockerfile describes, made by its own steps without an engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from support.deployment.containers import Mount, container
from support.deployment.dockerfile import Stage
from support.integration.uv_command import ROOT, UV, installed_or_skipped


@dataclass(frozen=True)
class Image:
    """What the steps made: the folder that is /opt/otel-llm in the image; and the stages of the Dockerfile."""

    opt: Path
    stages: dict[str, Stage]

    def mounts(self) -> list[Mount]:
        return [Mount(self.opt, "/opt/otel-llm"), Mount(uv_store(), str(uv_store()))]

    def environment(self) -> dict[str, str]:
        """Return the variables of the image."""
        env = self.stages["base"].environment()
        env["PATH"] = env["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
        return env

    def command(self, target: str, arguments: list[str]) -> list[str]:
        """Return the command of a container: the entrypoint of a target, and arguments or else its own."""
        stage = self.stages[target]
        entrypoint = (stage if stage.texts("ENTRYPOINT") else self.stages["base"]).command("ENTRYPOINT")
        return [*entrypoint, *(arguments or stage.command("CMD"))]


def uv_store() -> Path:
    """Return the folder of uv's packages: the environment has links into it rather than copies."""
    return Path(subprocess.run([UV, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip())


def copy_sources(stage: Stage, target: Path) -> None:
    """Copy what a stage copies of the checkout to where it copies it."""
    for sources, place in stage.copies():
        for name in sources:
            path = ROOT / name.rstrip("/")
            if path.is_dir():
                shutil.copytree(path, target / place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (target / place).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target / place)


def install(stages: dict[str, Stage], folder: Path) -> Image:
    """Run the steps of the stages `build` and `demo-build` as they stand, with uv in place of pip."""
    opt, source, scratch, store = folder / "opt", folder / "src", folder / "tmp", uv_store()
    for path in (opt, source, scratch):
        path.mkdir()
    copy_sources(stages["build"], source)
    variables = {"UV_LINK_MODE": "symlink", "UV_CACHE_DIR": str(store), "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": ""}
    given = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    env = given | stages["build"].environment() | variables | {"PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin"}
    kept = filter(os.path.isdir, os.environ.get("UV_FIND_LINKS", "").split(","))
    mounts = [
        *(Mount(Path(path), path) for path in ("/etc", *kept)),
        Mount(opt, "/opt/otel-llm", writable=True),
        Mount(source, "/src", writable=True),
        Mount(store, str(store), writable=True),
        Mount(scratch, "/tmp", writable=True),
        Mount(Path(UV), "/tools/uv"),
    ]
    instead = {
        "python -m venv": "python -m venv --without-pip",
        "/opt/otel-llm/bin/pip install --no-cache-dir": "/tools/uv pip install -q -p /opt/otel-llm",
    }
    for text in (*stages["build"].texts("RUN"), *stages["demo-build"].texts("RUN")):
        step = reduce(lambda so_far, words: so_far.replace(*words), instead.items(), text)
        command = container(folder, ["/bin/sh", "-ec", f"cd /src && {step}"], mounts, env, uid=0)
        installed_or_skipped(subprocess.run(command, capture_output=True, text=True, check=False))
    return Image(opt, stages)
