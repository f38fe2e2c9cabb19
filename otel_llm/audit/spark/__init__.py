"""The audit on Apache Spark: the same kernel over Parquet or journals in a lake, as batch and as Structured Streaming.

Spark schedules; its executors run `kernel.judge_batch` and `window_totals.window_partials`, batch by batch, as a laptop
does. Every node needs this package with its extra `collector`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from otel_llm.audit.spark.batch import Judged, Recordings, judge, read_recordings, read_streams
    from otel_llm.audit.spark.streaming import follow, follow_recordings, follow_streams, followed

__all__ = [
    "Judged",
    "Recordings",
    "follow",
    "follow_recordings",
    "follow_streams",
    "followed",
    "judge",
    "read_recordings",
    "read_streams",
]

_HOMES: Final = {name: "streaming" if name.startswith("follow") else "batch" for name in __all__}


def __getattr__(name: str) -> Any:
    """Import a name lazily; the error for a missing extra names it and the remedy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as missing:
        package = (missing.name or "otel_llm").split(".")[0]
        if package == "otel_llm":
            raise
        what = f"`{__name__}` needs {package}: pip install 'otel-llm[collector,spark]'"
        raise ModuleNotFoundError(what, name=missing.name) from missing
