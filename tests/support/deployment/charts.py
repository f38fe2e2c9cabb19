"""The chart as Helm renders it, by the environment that `make helm-env` makes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.requirements import HELM, require

ROOT = Path(__file__).parents[3]
CHART = ROOT / "collector" / "helm" / "otel-llm"
VALUES = sorted((CHART / "ci").glob("*.yaml"))

Manifest = dict[str, Any]


def tool(name: str) -> str:
    """Return a program of the environment; skip the test if it is not there."""
    require("helm")
    return str(HELM / name)


def rendered(files: Sequence[Path]) -> dict[Path, Manifest]:
    """Render the chart for files of values: `manifests`, `notes`, `lint` and `findings` of each, or `refused`."""
    script = Path(__file__).with_name("helm_render.py")
    command = [tool("bin/python"), str(script), str(CHART), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {path: found[str(path)] for path in files}


def of_kind(manifests: Sequence[Manifest], kind: str, part: str = "collector") -> Manifest:
    """Return the one manifest of this kind of a part of the chart."""
    label = "app.kubernetes.io/component"
    (one,) = (each for each in manifests if each["kind"] == kind and each["metadata"]["labels"][label] == part)
    return one


def pod_of(manifests: Sequence[Manifest], part: str) -> Manifest:
    """Return the pod's spec of a part."""
    workload = of_kind(manifests, {"collector": "StatefulSet", "relay": "Deployment"}[part], part)
    pod = workload["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def place_files(manifests: Sequence[Manifest], part: str, folder: Path, secrets: dict[str, dict[str, str]]) -> None:
    """Write the files of a pod's config maps and secrets as a kubelet does: links to a folder that it replaces.

    A mount at /etc/otel-llm/NAME is the folder NAME in `folder`. `secrets`: by name, the keys and their texts.
    """
    maps = {one["metadata"]["name"]: one["data"] for one in manifests if one["kind"] == "ConfigMap"}
    pod = pod_of(manifests, part)
    (container,) = pod["containers"]
    places = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    for volume in pod["volumes"]:
        place = folder / places[volume["name"]].removeprefix("/etc/otel-llm/")
        source = volume.get("configMap") or volume["secret"]
        data = maps[source["name"]] if "configMap" in volume else secrets[source["secretName"]]
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        for item in items:
            path = place / "..2026_11_26" / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(data[item["key"]], encoding="utf-8")
        (place / "..data").symlink_to("..2026_11_26")
        for name in {item["path"].split("/")[0] for item in items}:
            (place / name).symlink_to(f"..data/{name}")
