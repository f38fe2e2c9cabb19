"""Make a table from AIConfigurator's data: sums of measured kernels, without the engine's own overhead."""

from __future__ import annotations

import importlib.metadata
import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from otel_llm.scheduling.profiles.grid import COLUMNS, GridError, Measured, Point, make_grid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Estimate = Callable[[Point], float | None]
    """Milliseconds of an iteration; None if there are no data."""

PACKAGE: Final = "aiconfigurator-core"
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
CONTEXTS: Final = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
CHUNKS: Final = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
PRIORS: Final = (0, 1024, 4096, 16_384)
_KEPT: Final = 2
"""So many contexts of a batch are kept though the cache cannot hold them: a table continues from two."""
_DECIMALS: Final = 4
_NS_PER_MS: Final = 1_000_000


class ImportAicError(ValueError):
    """AIConfigurator has no usable data of an engine; the text says why, and the remedy."""


def estimator(model: str, system: str, backend: str, backend_version: str, tensor_parallel: int) -> Estimate:
    """Return AIConfigurator's estimate of an engine.

    Raises:
        ModuleNotFoundError: aiconfigurator-core is not installed.
        ImportAicError: it has no data of this engine.
    """
    from aiconfigurator_core.sdk.rust_engine_step import RustForwardPassPerfModel

    config = {
        "schema_version": 1,
        "model_name": model,
        "system_name": system,
        "backend": backend,
        "backend_version": backend_version,
        "tp_size": tensor_parallel,
        "pp_size": 1,
    }
    try:
        native = RustForwardPassPerfModel.from_native(config)
    except Exception as error:
        raise ImportAicError(
            f"{PACKAGE} refuses {model} on {system} with {backend} {backend_version}: {error}"
        ) from error

    def estimate(at: Point) -> float | None:
        scheduled = {
            "num_prefill_requests": int(at.chunk > 0),
            "sum_prefill_tokens": at.chunk,
            "var_prefill_length": 0.0,
            "sum_prefill_kv_tokens": at.prior,
            "num_decode_requests": at.decodes,
            "sum_decode_kv_tokens": at.kv_tokens,
            "var_decode_kv_tokens": 0.0,
        }
        iteration = {"version": 1, "worker_id": "", "dp_rank": 0, "counter_id": 0, "wall_time": 0.0}
        found: float | None = native.estimate_forward_pass_time_ms(
            {**iteration, "scheduled_requests": scheduled, "queued_requests": {}}
        )
        return found

    return estimate


def sizes(kv_tokens: int, max_batch: int, max_batched_tokens: int) -> list[Point]:
    """Return the iterations of a table: a grid that ends at the engine's limits, and at a full cache."""
    batches = [size for size in BATCHES if size < max_batch] + [max_batch]
    chunks = [0, *(size for size in CHUNKS if size < max_batched_tokens), max_batched_tokens]
    decodes = [(0, 0)]
    for size in batches:
        held = [context for context in CONTEXTS if size * context <= kv_tokens]
        decodes += [(size, size * context) for context in (held if len(held) >= _KEPT else CONTEXTS[:_KEPT])]
    return [
        Point(size, kv, chunk, prior)
        for size, kv in decodes
        for chunk in chunks
        for prior in (PRIORS if chunk else (0,))
        if size or chunk
    ]


def table_text(estimate: Estimate, points: Sequence[Point]) -> str:
    """Return the table of these iterations as CSV, in ms to 100 ns.

    Raises:
        ImportAicError: an iteration has no estimate, or they make no table.
    """
    lines = [",".join(COLUMNS)]
    measured: dict[Point, Measured] = {}
    for at in points:
        try:
            length_ms = estimate(at)
        except Exception as error:
            raise ImportAicError(f"{PACKAGE} cannot estimate {at}: {error}") from error
        if length_ms is None or not 0 < round(length_ms, _DECIMALS) < float("inf"):
            raise ImportAicError(f"{PACKAGE} has no estimate of {at}: choose a smaller --max-batch or --kv-tokens")
        cell = str(round(length_ms, _DECIMALS))
        lines.append(",".join(map(str, (*at, cell))))
        measured[at] = Measured(Fraction(cell) * _NS_PER_MS, len(lines))
    try:
        make_grid(measured)
    except GridError as error:
        raise ImportAicError(f"the estimates of {PACKAGE} make no table: {error.message} ({error.advice})") from error
    return "\n".join(lines) + "\n"


def profile_text(table: str, facts: Mapping[str, Any]) -> str:
    """Return the profile's file; `table`: the name of its CSV file, `facts`: its other keys, in their order."""
    source = f"Sums of measured kernels in {PACKAGE} {importlib.metadata.version(PACKAGE)} (NVIDIA, Apache-2.0)."
    lines = ["version: 1", *(f"{name}: {json.dumps(value)}" for name, value in facts.items())]
    return "\n".join([*lines, f"source: {json.dumps(source)}", f"table: {json.dumps(table)}"]) + "\n"
