"""The audit, in order: read, assemble, choose a class, judge, add up by window, summarise; batch by batch."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.audit.input.load_inputs import Inputs, Tokens
from otel_llm.audit.input.retained import ALL_TOKENS, WORST, Retained
from otel_llm.audit.input.runs import chosen_run, run_name
from otel_llm.audit.kernel.judged_columns import in_order, masked
from otel_llm.audit.kernel.window_length import LENGTHS_NS, adapted, begun
from otel_llm.audit.kernel.window_totals import Windows
from otel_llm.audit.kernel.workers import Work, outcomes
from otel_llm.audit.result import Audit
from otel_llm.config.durations import parse_duration_ns
from otel_llm.formats.assemble.stream_assembler import HELD_BYTES
from otel_llm.rules.files.slo_file import load_slo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from otel_llm.slo.classes import SloClasses

LATENESS_NS: Final = 5_000_000_000
"""The collector's default: a stream whose clock is off by more is shifted into its windows."""


class Limits(NamedTuple):
    """The limits of an audit's memory.

    `held_bytes`: for incomplete requests; `retained_tokens`: the size of an input whose deliveries are all kept;
    `retained_worst`: of a larger one so many with the longest idle time, and twice as many with the lowest
    fluidity-index.
    """

    held_bytes: int = HELD_BYTES
    retained_tokens: int = ALL_TOKENS
    retained_worst: int = WORST


DEFAULT_LIMITS: Final = Limits()


def load(
    *paths: str | Path,
    slo: str | Path | SloClasses | None = None,
    class_name: str | None = None,
    window: str | float | None = None,
    windows: bool = True,
    jobs: int = 1,
    strict: bool = False,
    keep: Iterable[str] = (),
    observe: Callable[[pa.RecordBatch], None] | None = None,
    progress: Callable[[int], None] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    tokens: Tokens = "stated",
    run: int | str | None = None,
) -> Audit:
    """Audit recorded streams: journals, OTLP, benchmark results, Parquet of token times; the format is sniffed.

    `slo` is a file of SLO classes or the classes (the shipped ones if it is None); `class_name` judges every
    request by that class; `window` is a duration as `10s` or in seconds (None: 10 s, and shorter for a recording of
    less than 400 s), and `windows=False` charges none. `jobs` processes share the work (a script that asks for more
    than one must guard its main part, as multiprocessing has it). `keep`: trace ids whose deliveries are kept;
    `observe` is called with every batch of STREAMS; `progress` is called with the bytes read so far; `limits` bound
    the memory. `tokens="recorded"` judges the recorded tokens even of replies that state a total. `run` chooses one of
    the runs of a benchmark's result file: its number from 1, or its name `FILE#NUMBER`.

    Raises:
        InputError: a path does not exist, is nothing that can be read, or nothing was found in any of them; or there
            is no such run.
        SeveralRunsError: an InputError; a file holds several runs, and none was chosen.
        BrokenRecordError: with `strict`, at the first broken record; the message names file and place.
        ConfigError: the SLO file is wrong.
        UnknownClassError: the file has no class of that name.
        ValueError: the window is no duration above zero.
        WorkerError: one of several processes was killed.
    """
    stated_ns = None if window is None else parse_duration_ns(window)
    if stated_ns is not None and stated_ns <= 0:
        raise ValueError(f"a window of {window!r} is empty; write a duration above zero, as 10s")
    classes = load_slo(slo) if slo is None or isinstance(slo, str | Path) else slo
    if class_name is not None:
        classes = classes.judging(class_name)
    every = [Path(path) for path in paths]
    names, number = tuple(map(str, every)), None
    if run is not None:
        file, number = chosen_run(every, run)
        every, names = [file], (run_name(file, number),)
    inputs = Inputs(
        every,
        strict=strict,
        progress=progress,
        held_bytes=limits.held_bytes,
        tokens=tokens,
        run=number,
        single_runs=True,
    )
    charged, retained = Windows(), Retained(keep, limits.retained_tokens, limits.retained_worst)
    judged: list[pa.RecordBatch] = []
    with closing(inputs.batches()) as batches:
        window_ns, every_batch = (stated_ns, batches) if stated_ns else begun(batches, limits.retained_tokens)
        work = Work(classes, window_ns if windows else None, LATENESS_NS)
        with closing(outcomes(every_batch, work, jobs)) as results:
            for found in results:
                if observe is not None:
                    observe(found.streams)
                judged.append(found.judged)
                retained.add(found.streams, found.judged)
                if found.partials is not None:
                    charged.add(found.partials)
                    if not stated_ns and window_ns < LENGTHS_NS[-1]:
                        window_ns = _widened(charged, window_ns)
    table = in_order(judged)
    counts = Counter(inputs.counts + charged.counts)
    counts["unknown_class"] += int(masked(table, "unknown_class").values.sum())
    counts["skewed_tokens"] += int(masked(table, "skewed").values.sum())
    return Audit(
        inputs=names,
        slo=classes,
        window_ns=window_ns,
        judged_table=table,
        charged_windows=charged.rows(window_ns) if windows else None,
        skipped=inputs.skipped,
        retained=retained,
        counts=counts,
    )


def _widened(charged: Windows, window_ns: int) -> int:
    """Widen the windows if the recording turns out to be so long; return their length."""
    wanted_ns = adapted(charged.span_ns)
    if wanted_ns <= window_ns:
        return window_ns
    charged.widen(wanted_ns)
    return wanted_ns
