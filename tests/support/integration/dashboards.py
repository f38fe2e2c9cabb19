"""Grafana's dashboards as they are committed: their panels, and their queries as a Prometheus is asked them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "collector" / "grafana"
DASHBOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((FOLDER / "dashboards").glob("*.json"))
}
DEFAULT_INTERVAL = "5m"
"""Longer than a test: what increased stays in the window."""


@dataclass(frozen=True)
class Expression:
    """An expression of a dashboard, and its place."""

    dashboard: str
    place: str
    text: str

    def asked(self, variables: dict[str, str], interval: str = DEFAULT_INTERVAL) -> str:
        """Return it with values for its variables, `.*` for those that are not given."""
        text = self.text.replace("$__rate_interval", interval)
        return re.sub(r"\$(\w+)", lambda found: variables.get(found[1], ".*"), text)


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels that are no rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries() -> Iterator[Expression]:
    """Yield the expressions of all panels and annotations."""
    for name, dashboard in DASHBOARDS.items():
        for panel in panels(dashboard):
            for target in panel.get("targets", ()):
                yield Expression(name, f"{panel['title']} {target['refId']}", target["expr"])
        for annotation in dashboard["annotations"]["list"]:
            if "expr" in annotation:
                yield Expression(name, annotation["name"], annotation["expr"])


def variables() -> Iterator[Expression]:
    """Yield the selectors that variables take their values from."""
    for name, dashboard in DASHBOARDS.items():
        for one in dashboard["templating"]["list"]:
            if one["type"] == "query":
                found = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]["query"])
                assert found, one["query"]
                yield Expression(name, f"variable {one['name']}", f"count by ({found[2]}) ({found[1]})")
