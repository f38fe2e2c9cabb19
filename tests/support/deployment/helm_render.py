"""Run by the Python of `.venv-helm`, which has Helm: render and lint a chart for files of values, and check it.

    helm_render.py CHART VALUES...

prints one JSON object: for each file of values its manifests and the findings of the linter (2: a warning, 3: an error)
and of the schemas of the oldest and the newest Kubernetes. A file whose values are refused has `refused` instead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import yaml

VERSIONS = ("1.25", kubernetes_validate.latest_version())
"""`kubeVersion` of the chart, and the newest one that this package knows."""


def checked(manifest: dict[str, Any]) -> list[str]:
    """Return what the schemas of Kubernetes say against a manifest; custom resources have none."""
    found = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            found.append(f"no schema: {manifest['kind']}")
        except kubernetes_validate.ValidationError as error:
            found.append(f"{version}: {manifest['kind']}: {error.message}")
    return sorted(set(found))


def rendered(chart: helm_python.Chart, folder: str, path: Path) -> dict[str, Any]:
    """Return the manifests for a file of values, and all findings."""
    values = helm_python.values_from_yaml(path.read_text(encoding="utf-8"))
    try:
        texts = chart.render(values, name="otel-llm", namespace="observability")
    except helm_python.HelmError as error:
        return {"refused": str(error)}
    notes = "".join(text for name, text in texts.items() if name.endswith("NOTES.txt"))
    files = (text for name, text in texts.items() if not name.endswith("NOTES.txt"))
    manifests = [one for text in files for one in yaml.safe_load_all(text) if one is not None]
    lint = helm_python.lint(folder, values, strict=True)
    messages = [one for one in lint["messages"] if one["severity"] > 1]
    findings = [finding for one in manifests for finding in checked(one)]
    return {"manifests": manifests, "notes": notes, "lint": [*messages, *lint["errors"]], "findings": findings}


def main() -> None:
    """Print the JSON object."""
    folder, *files = sys.argv[1:]
    with helm_python.Chart.load(folder) as chart:
        found = {name: rendered(chart, folder, Path(name)) for name in files}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
