"""The SLO classes of the benchmark's streams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_classes(path: Path, segment_tokens: int) -> Path:
    """Write the classes; `starving` reads a quarter faster than segments of `segment_tokens` every 250 ms come."""
    classes = {
        "chat": {
            "match": {"gen_ai.operation.name": "chat"},
            "reading_speed": 5,
            "objective": {"fluidity_index": 0.9, "share": 0.99, "attainment": 0.99},
        },
        "starving": {"reading_speed": 5 * segment_tokens},
        "quiet": {"reading_speed": 1},
        "sample": {"reading_speed": 5},
    }
    text = json.dumps({"version": 1, "default": "chat", "classes": classes}, indent=1)  # JSON is YAML
    path.write_text(text, encoding="utf-8")
    return path
