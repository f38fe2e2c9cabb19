"""The audit on Apache Spark: the same kernel over Parquet or journals in a lake, as batch and as Structured Streaming.

Spark does the scheduling; what runs on its executors is `kernel.judge_batch` and `windowing.window_partials`, batch by
batch, as on a laptop. Every node needs this package with its extra `collector`.
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
    """Import what is asked for; a missing extra is named, with what to do about it."""
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
