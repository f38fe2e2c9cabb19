"""`otel-llm report`: renders the report again from the saved tables of an audit."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from otel_llm.audit import write
from otel_llm.audit.report.report import TITLE, build
from otel_llm.audit.report.saved import load_saved
from otel_llm.cli.output.echo import echo
from otel_llm.config.yaml_file import ConfigError
from otel_llm.shared.formatting import plural
from otel_llm.shared.outputs import Inputs
from otel_llm.shared.printable import printable

EXAMPLES = """
\b
Examples:
  otel-llm audit journal --requests r.parquet --windows w.parquet
  otel-llm report --requests r.parquet --windows w.parquet --html report.html
  otel-llm report --requests r.csv --windows w.csv --summary audit.json --html report.html
  otel-llm report --requests r.parquet --windows w.parquet --streams journal --html report.html

\b
Exit code: 0 fine; 2 bad usage, or a table that cannot be read.
"""

_IN: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
_ANY: Final = click.Path(path_type=Path, exists=True)
_OUT: Final = click.Path(path_type=Path)


@click.command("report", epilog=EXAMPLES, short_help="The audit's report, from saved tables.")
@click.option("--requests", type=_IN, required=True, metavar="F", help="The table of `audit --requests`.")
@click.option("--windows", type=_IN, required=True, metavar="F", help="The table of `audit --windows`.")
@click.option("--html", type=_OUT, required=True, metavar="OUT", help="The page to write.")
@click.option("--slo", type=_OUT, metavar="F", help="The SLO classes of the audit; the shipped ones where not given.")
@click.option(
    "--summary",
    type=_IN,
    metavar="F",
    help="Output of `audit --format json`; a Parquet table of requests contains it.",
)
@click.option("--streams", type=_ANY, metavar="F", help="The recording, in any format, for the charts of deliveries.")
@click.option("--title", default=TITLE, show_default=True, metavar="WORDS", help="Title of the page.")
def report(
    requests: Path, windows: Path, html: Path, slo: Path | None, summary: Path | None, streams: Path | None, title: str
) -> None:
    """Render the report of an audit again, from its saved tables.

    The numbers are those of the audit. The tables hold no token times: without --streams the deliveries of the worst
    requests are named and not drawn. Tables are Parquet, CSV or JSON lines, detected from the content.
    """
    inputs = Inputs(recordings=[] if streams is None else [streams], files=[requests, windows, summary, slo])
    try:
        write.check_outputs([(html, (".html",))], inputs)
        model = load_saved(requests, windows, slo=slo, summary=summary, streams=streams)
        page = build(model, title=title)
        write.write_text(html, page)
    except ModuleNotFoundError as missing:
        from otel_llm.cli.lazy_group import MissingExtraError

        raise MissingExtraError("report", missing.name or "a module") from missing
    except (ConfigError, ValueError, OSError) as error:
        raise click.UsageError(printable(str(error), 1000)) from error
    size = html.stat().st_size / 1e6
    echo(f"{printable(str(html), 300)}: {plural(len(model.requests), 'request')}, {size:.1f} MB")
