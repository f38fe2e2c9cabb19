"""Whether plain data is a figure that plotly knows, with the colours that a page would put in."""

from __future__ import annotations

import json
from typing import Any


def check(figure: dict[str, Any]) -> None:
    """Raise ValueError on any property or value that plotly does not know, and on what JSON cannot hold."""
    import plotly.graph_objects as go

    json.dumps(figure, allow_nan=False)
    go.Figure(_painted(figure))


def _painted(value: Any) -> Any:
    # Names of the palette are no colours to plotly.
    if isinstance(value, dict):
        return {key: _painted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_painted(inner) for inner in value]
    return "#123456" if isinstance(value, str) and value.startswith("$") else value
