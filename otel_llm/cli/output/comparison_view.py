"""The comparisons of `otel-llm audit`: with another recording (`--baseline`), and by tier (`--tiers`)."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from otel_llm.audit import coverage, load, write
from otel_llm.audit.compare import bootstrap, gate, tiers
from otel_llm.audit.compare import comparison as compare
from otel_llm.audit.compare.bootstrap import GIVEN
from otel_llm.audit.summary_figures import FIGURES as WORDS
from otel_llm.cli.output.echo import echo, write_data
from otel_llm.cli.output.progress import reading_files
from otel_llm.cli.output.terminal_console import wide_console
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.formatting import number, share
from otel_llm.shared.printable import MISSING, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

    from otel_llm.audit import Audit
    from otel_llm.audit.compare.comparison import Change, Comparison
    from otel_llm.audit.compare.tiers import Tiers

    Observe = Callable[[pa.RecordBatch], None]

_PATH: Final = click.Path(path_type=Path)
_WRITES: Final = {key: write for _, figures in WORDS for key, _, write in figures} | {"benefit_mean_tokens": number}
_STYLES: Final = {"worse": "bold red", "better": "green", "differs": "yellow"}


@dataclass(slots=True)
class ComparisonOptions:
    """The options of comparisons, and the data read for them."""

    baseline: tuple[Path, ...]
    by: tuple[Any, ...]
    drawing: bootstrap.Drawing
    limits: dict[str, gate.Threshold] | None
    as_tiers: bool
    _old: Audit | None = None
    _judging: tiers.Judging | None = None

    def observing(self, slo: Path | None, class_name: str | None, also: Observe | None) -> Observe | None:
        """Return an observer of batches of streams for `audit.load`, which calls `also`, too; None if unneeded."""
        if not self.as_tiers:
            return also
        classes = load_slo(slo)
        judging = self._judging = tiers.Judging(classes if class_name is None else classes.judging(class_name))

        def observe(batch: pa.RecordBatch) -> None:
            judging.add(batch)
            if also is not None:
                also(batch)

        return observe

    def read(self, **how: Any) -> None:
        """Read the baseline, with the arguments `how` of `audit.load`, whose errors it raises."""
        if self.baseline:
            with reading_files(self.baseline) as advance:
                self._old = load(*self.baseline, windows=False, progress=advance, **how)

    def unshown(self, found: Audit) -> list[str]:
        """Return a line for each recording in which the gate has nothing to compare; none without a gate."""
        if self.limits is None or self._old is None:
            return []
        sides = (("PATH", found), ("--baseline", self._old))
        empty = [(name, side.judged_table) for name, side in sides if not coverage.comparable(side.judged_table)]
        return [f"--fail-on-regression: {name}: {coverage.unjudged(rows)}" for name, rows in empty]

    def write_html(self, found: Audit, path: Path) -> None:
        """Write the report, with the tiers if `--tiers` is set."""
        if self._judging is None:
            found.write_html(path)
            return
        from otel_llm.audit.report.report import render

        write.write_text(path, render(found, tiers=self._judging.result()))

    def show(self, found: Audit, form: str, audit: Callable[[Audit, str, bool], None], *, csv_raw: bool) -> bool:
        """Print the comparison or the tiers, else call `audit`; return whether the gate is shut."""
        console = wide_console()
        if self._old is not None:
            return _show_comparison(console, self._old, found, self, form, csv_raw=csv_raw)
        if self._judging is None:
            audit(found, form, csv_raw)
            return False
        counted = self._judging.result()
        if form == "json":
            click.echo(json.dumps({**found.summary(), "tiers": counted.summary()}, allow_nan=False))
        elif form == "csv":
            write_data(write.csv_text(counted.rows, tiers.COLUMNS, raw=csv_raw))
        else:
            audit(found, form, csv_raw)
            if counted.rows:
                _show_tiers(console, counted)
        return False


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of this module to a command, as its argument `comparison`."""

    @click.option("--baseline", type=_PATH, multiple=True, metavar="OLD", help="Compare PATH with OLD; repeatable.")
    @click.option(
        "--by",
        type=click.Choice(["model", "instance"]),
        multiple=True,
        help="Also compare each model, or instance, separately; repeatable.",
    )
    @click.option(
        "--resamples",
        type=click.IntRange(min=bootstrap.FEWEST_RESAMPLES),
        default=bootstrap.RESAMPLES,
        show_default=True,
        metavar="N",
        help="For intervals.",
    )
    @click.option(
        "--seed", default=0, show_default=True, metavar="N", help="Of the resampling, which it makes repeatable."
    )
    @click.option(
        "--block", default=1, show_default=True, metavar="N", help="Resample N requests in a row, which are correlated."
    )
    @click.option("--confidence", default=bootstrap.LEVEL, show_default=True, metavar="SHARE", help="Of an interval.")
    @click.option("--fail-on-regression", is_flag=True, help="Exit 1 when PATH is worse than OLD beyond a threshold.")
    @click.option(
        "--threshold",
        multiple=True,
        metavar="FIGURE=BY",
        help="By how much a figure may get worse: 5%, 0.01, 100ms, off; repeatable.",
    )
    @click.option("--tiers", "as_tiers", is_flag=True, help="Attainment of each class under each class's deadline.")
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        baseline: tuple[Path, ...],
        by: tuple[str, ...],
        resamples: int,
        seed: int,
        block: int,
        confidence: float,
        fail_on_regression: bool,
        threshold: tuple[str, ...],
        as_tiers: bool,
        **rest: Any,
    ) -> None:
        if (by or threshold or fail_on_regression) and not baseline:
            raise click.UsageError(
                "--by, --threshold and --fail-on-regression compare with a recording: --baseline OLD"
            )
        if threshold and not fail_on_regression:
            raise click.UsageError("--threshold says when to fail: add --fail-on-regression")
        if as_tiers and baseline:
            raise click.UsageError("--tiers and --baseline are two tables; ask for one at a time")
        try:
            drawing = bootstrap.Drawing(resamples, seed, block, confidence)
            limits = gate.thresholds(threshold) if fail_on_regression else None
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        command(*args, comparison=ComparisonOptions(baseline, by, drawing, limits, as_tiers), **rest)

    return wrapped


def _show_comparison(
    console: Console, old: Audit, new: Audit, comparison: ComparisonOptions, form: str, *, csv_raw: bool
) -> bool:
    """Print the comparison of two audits; return whether the gate is shut."""
    found = compare.compare(old, new, by=comparison.by, drawing=comparison.drawing)
    worse = [] if comparison.limits is None else gate.regressions(found, comparison.limits)
    if form == "json":
        both = {"old": old.summary(), "new": new.summary(), "comparison": found.summary(), "regressions": worse}
        click.echo(json.dumps(both, allow_nan=False))
    elif form == "csv":
        write_data(write.csv_text(found.rows, compare.COLUMNS, raw=csv_raw))
    else:
        for table in comparison_tables(found):
            console.print(table)
        for note in found.notes:
            console.print(printable(note, 400), style="dim", markup=False)
        for name, one in (("old", old), ("new", new)):
            statement = coverage.statement(one.judged_table, one.skipped.counts, one.counts)
            console.print(f"{name}: {statement}", style="dim", markup=False)
        console.print(_method(found), style="dim", markup=False)
    for note in old.skipped.notes:
        echo(f"baseline: {printable(note, 300)}", err=True)
    for sentence in worse:
        echo(f"regression: {printable(sentence, 400)}", err=True)
    if comparison.limits is not None:
        for change in gate.undecided(found, comparison.limits):
            echo(f"not judged: {printable(f'{change.slo_class}, {change.figure}: {change.why}', 400)}", err=True)
    return bool(worse)


def _show_tiers(console: Console, found: Tiers) -> None:
    """Print attainment by class and tier, and by model and instance where there is more than one."""
    console.print(tiers_table(found, "slo_class"))
    for name in ("model", "instance"):
        if len({group[1] for group in found.by("measured_at", name)}) > 1:
            console.print(tiers_table(found, name, "slo_class"))
    console.print(
        "Rows: the class of the requests. Columns: the share that met the deadline of their own class (own), and of "
        "each class. Requests without a verdict are left out.",
        style="dim",
    )


def comparison_tables(found: Comparison) -> list[Table]:
    """Return a table of each group."""
    groups: dict[tuple[str | None, ...], list[Change]] = {}
    for change in found.changes:
        groups.setdefault((change.slo_class, change.measured_at, change.model, change.instance), []).append(change)
    return [_table(group, changes) for group, changes in groups.items()]


def tiers_table(found: Tiers, *names: str) -> Table:
    """Return the attainment of each group under its own classes and under each tier."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    keys = ("measured_at", *names)
    own = found.own(*keys)
    title = "Attainment by tier" + ("" if names == ("slo_class",) else f", by {names[0]}")
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    for name in keys:
        table.add_column({"measured_at": "at", "slo_class": "class"}.get(name, name))
    for name in ("requests", "own", *found.names):
        table.add_column(Text(printable(name, 24)), justify="right", no_wrap=True)
    everything = {key: (counts, found.own("measured_at")[key]) for key, counts in found.by("measured_at").items()}
    lines = [(group, counts, own[group]) for group, counts in found.by(*keys).items()]
    if len(lines) > len(everything):
        lines += [((*key, "all", *[""] * (len(names) - 1)), *both) for key, both in everything.items()]
    for group, counts, mine in lines:
        cells = [*(printable(part, 32) for part in group), number(mine.requests), share(mine.attainment)]
        table.add_row(*(Text(cell) for cell in (*cells, *(share(counts[name].attainment) for name in found.names))))
    return table


def _table(group: tuple[str | None, ...], changes: Sequence[Change]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    name = ", ".join(printable(part, 32) for part in group if part is not None)
    title = f"{name}: {changes[0].old_requests:,} requests in old, {changes[0].new_requests:,} in new"
    table = Table(title=Text(title), title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for heading in ("old", "new", "difference", "from", "to", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for change in changes:
        if change.old is None and change.new is None:
            continue
        write = _WRITES[change.figure]
        values = (change.old, change.new, change.difference, change.difference_low, change.difference_high)
        verdict = change.verdict if change.verdict != "cannot say" else "" if change.figure in GIVEN else change.why
        cells = [change.figure, *(_signed(write, one, place > 1) for place, one in enumerate(values)), _ratio(change)]
        table.add_row(*(Text(cell) for cell in cells), Text(verdict, style=_STYLES.get(change.verdict, "dim")))
    return table


def _signed(write: Callable[[Any], str], value: float | None, signed: bool) -> str:
    if value is None:
        return MISSING
    if not signed:
        return write(value)
    # A difference of shares is in points: `-2 %` would read as a share of the old value.
    text = f"{number(abs(value) * 100)} pt" if write is share else write(abs(value))
    return text if value == 0 else f"{'+' if value > 0 else '-'}{text}"


def _ratio(change: Change) -> str:
    return MISSING if change.ratio is None else f"x {number(change.ratio)}"


def _method(found: Comparison) -> str:
    drawing = found.drawing
    blocks = "" if drawing.block == 1 else f" in blocks of {drawing.block}"
    return (
        f"from, to: {share(drawing.level)} bootstrap interval of the difference, {drawing.resamples:,} resamples of "
        f"the requests{blocks}, seed {drawing.seed}; rates per second of each recording's span as it was. Of 20 "
        "figures that did not change, one is expected to seem so."
    )
