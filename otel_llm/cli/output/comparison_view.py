"""The comparisons of `otel-llm audit`: with another recording (`--baseline`), and by tier (`--tiers`)."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from otel_llm.audit import coverage, load, write
from otel_llm.audit.compare import bootstrap, comparison_lines, gate, tiers
from otel_llm.audit.compare import comparison as compare
from otel_llm.audit.input.load_inputs import SeveralRunsError
from otel_llm.audit.report.compared import Compared
from otel_llm.cli.output.echo import echo, write_data
from otel_llm.cli.output.progress import reading_files
from otel_llm.cli.output.terminal_console import wide_console
from otel_llm.formats.records import InputError
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.formatting import number, share
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

    from otel_llm.audit import Audit
    from otel_llm.audit.compare.comparison import Comparison
    from otel_llm.audit.compare.tiers import Tiers

    Observe = Callable[[pa.RecordBatch], None]

_PATH: Final = click.Path(path_type=Path)
_STYLES: Final = {"worse": "bold red", "better": "green", "held": "green", "differs": "yellow"}


@dataclass(slots=True)
class ComparisonOptions:
    """The options of comparisons, and the data read for them."""

    baseline: tuple[Path, ...]
    baseline_run: str | None
    by: tuple[Any, ...]
    drawing: bootstrap.Drawing
    limits: dict[str, gate.Threshold] | None
    as_tiers: bool
    _old: Audit | None = None
    _judging: tiers.Judging | None = None
    _compared: Compared | None = None

    @property
    def asked(self) -> bool:
        """Tell whether a comparison or the tiers were asked for."""
        return bool(self.baseline) or self.as_tiers

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
                try:
                    self._old = load(*self.baseline, windows=False, progress=advance, run=self.baseline_run, **how)
                except SeveralRunsError as several:
                    raise InputError(f"{several}, with --baseline-run") from several

    def unshown(self, found: Audit) -> list[str]:
        """Return a line for each recording in which the gate has nothing to compare; none without a gate."""
        if self.limits is None or self._old is None:
            return []
        sides = (("PATH", found), ("--baseline", self._old))
        empty = [(name, side.judged_table) for name, side in sides if not coverage.comparable(side.judged_table)]
        return [f"--fail-on-regression: {name}: {coverage.unjudged(rows)}" for name, rows in empty]

    def compared(self, found: Audit) -> Compared | None:
        """Return the comparison with the baseline, computed once; None without a baseline."""
        if self._old is not None and self._compared is None:
            changes = compare.compare(self._old, found, by=self.by, drawing=self.drawing)
            decisions = None if self.limits is None else gate.decisions(changes, self.limits)
            self._compared = Compared(self._old.inputs, changes, decisions)
        return self._compared

    def write_html(self, found: Audit, path: Path) -> None:
        """Write the report, with the comparison or the tiers that were asked for."""
        from otel_llm.audit.report.report import render

        counted = None if self._judging is None else self._judging.result()
        write.write_text(path, render(found, tiers=counted, compared=self.compared(found)))

    def show(
        self, found: Audit, output_format: str, audit: Callable[[Audit, str, bool], None], *, csv_raw: bool
    ) -> bool:
        """Print the comparison or the tiers, else call `audit`; return whether the gate is shut."""
        console = wide_console()
        compared = self.compared(found)
        if self._old is not None and compared is not None:
            return _show_comparison(console, self._old, found, compared, output_format, csv_raw=csv_raw)
        if self._judging is None:
            audit(found, output_format, csv_raw)
            return False
        counted = self._judging.result()
        if output_format == "json":
            click.echo(json.dumps({**found.summary(), "tiers": counted.summary()}, allow_nan=False))
        elif output_format == "csv":
            write_data(write.csv_text(counted.rows, tiers.COLUMNS, raw=csv_raw))
        else:
            audit(found, output_format, csv_raw)
            if counted.rows:
                _show_tiers(console, counted)
        return False


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of this module to a command, as its argument `comparison`."""

    @click.option("--baseline", type=_PATH, multiple=True, metavar="OLD", help="Compare PATH with OLD; repeatable.")
    @click.option("--baseline-run", metavar="NAME|N", help="The run of OLD, as --run.")
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
        baseline_run: str | None,
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
        if (by or threshold or fail_on_regression or baseline_run) and not baseline:
            raise click.UsageError(
                "--baseline-run, --by, --threshold and --fail-on-regression compare with a recording: --baseline OLD"
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
        command(*args, comparison=ComparisonOptions(baseline, baseline_run, by, drawing, limits, as_tiers), **rest)

    return wrapped


def _show_comparison(
    console: Console, old: Audit, new: Audit, compared: Compared, output_format: str, *, csv_raw: bool
) -> bool:
    """Print the comparison of two audits; return whether the gate is shut."""
    found, decisions = compared.found, compared.decisions or ()
    worse = [one.sentence for one in decisions if one.state == "worse"]
    if output_format == "json":
        both = {"old": old.summary(), "new": new.summary(), "comparison": found.summary(), "regressions": worse}
        gate = None if compared.decisions is None else [one.row() for one in decisions]
        click.echo(json.dumps({**both, "gate": gate}, allow_nan=False))
    elif output_format == "csv":
        write_data(write.csv_text(found.rows, compare.COLUMNS, raw=csv_raw))
    else:
        for table in comparison_tables(found):
            console.print(table)
        if decisions:
            lines = comparison_lines.gate_lines(decisions)
            console.print(_table("--fail-on-regression", comparison_lines.GATE_HEADINGS, lines))
        for note in found.notes:
            console.print(printable(note, 400), style="dim", markup=False)
        for name, one in (("old", old), ("new", new)):
            statement = coverage.statement(one.judged_table, one.skipped.counts, one.counts)
            console.print(f"{name}: {statement}", style="dim", markup=False)
        console.print(comparison_lines.method(found), style="dim", markup=False)
    for note in old.skipped.notes:
        echo(f"baseline: {printable(note, 300)}", err=True)
    for sentence in worse:
        echo(f"regression: {printable(sentence, 400)}", err=True)
    for decision in decisions:
        if decision.state == "not judged":
            sentence = f"{decision.change.slo_class}, {decision.change.figure}: {decision.change.why}"
            echo(f"not judged: {printable(sentence, 400)}", err=True)
    if compared.decisions is not None:
        echo(comparison_lines.gate_sentence(decisions), err=True)
    return bool(worse)


def _show_tiers(console: Console, found: Tiers) -> None:
    """Print attainment by class and tier, and by model and instance if there is more than one."""
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
    return [
        _table(title, comparison_lines.HEADINGS, comparison_lines.lines(changes))
        for title, changes in comparison_lines.groups(found.changes)
    ]


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


def _table(title: str, headings: Sequence[str], lines: Sequence[tuple[str, ...]]) -> Table:
    """Return a table whose first and last columns hold text."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    for index, heading in enumerate(headings):
        inner = 0 < index < len(headings) - 1
        table.add_column(heading, justify="right" if inner else "left", no_wrap=inner or not index)
    for *cells, verdict in lines:
        table.add_row(*(Text(cell) for cell in cells), Text(verdict, style=_STYLES.get(verdict, "dim")))
    return table
