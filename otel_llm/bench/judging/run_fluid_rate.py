"""The fluid token rate of a run (Etalon, section 5.1), and the first-token targets that it kept (section 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_llm.audit.calibrate.alpha_fit import TooLittleError
from otel_llm.audit.calibrate.prefill import fit_prefill, prompts_of
from otel_llm.audit.input.resampled import resampled
from otel_llm.audit.kernel.judge_batch import recorded
from otel_llm.slo.classes import Objective, SloClass
from otel_llm.slo.fluid.fluid_rate import DEFAULT_SHARE, FluidRate, fluid_token_rate
from otel_llm.slo.fluid.fluid_search import fluid_tbt_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from otel_llm.audit.calibrate.prefill import Prefill
    from otel_llm.slo.classes import SloClasses


def fluid_rate_of(streams: Iterable[pa.RecordBatch], reads: tuple[int, ...]) -> FluidRate | None:
    """Return the fluid token rate of batches of STREAMS; None where no request has two tokens that are read.

    The TBT target is the smallest with which 99 % of the requests keep a fluidity-index of 0.9, whatever the objective
    of their class; first tokens are not judged. `reads`: the kinds of token that count.
    """
    slo = SloClass(reads=reads, objective=Objective())
    targets: list[int] = []
    for judged in (part.streams for batch in streams for part in resampled(batch)):
        complete = judged.column("complete").to_numpy(zero_copy_only=False)
        found = fluid_tbt_many(recorded(judged, complete), [slo])
        targets += found.values[found.known].tolist()
    return fluid_token_rate(targets)


def first_token_targets(streams: Sequence[pa.RecordBatch], classes: SloClasses) -> Prefill | str:
    """Return the curve over the prompt's length that 99 % of the first tokens kept, under this load; else why not."""
    prompts = prompts_of(streams, classes)
    try:
        return fit_prefill(prompts, DEFAULT_SHARE, contended=True)
    except (TooLittleError, np.linalg.LinAlgError) as error:
        return str(error)
