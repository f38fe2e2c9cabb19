"""Write Grafana's dashboards from the table of metrics.

python collector/grafana/build_dashboards.py           # writes collector/grafana/dashboards/*.json
python collector/grafana/build_dashboards.py --check   # exits 1 if a file is not what would be written
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import click
from generator import collector_dashboard, readers_dashboard, replicas_dashboard, rules_dashboard

FOLDER: Final = Path(__file__).with_name("dashboards")
DASHBOARDS: Final = tuple(
    module.DASHBOARD for module in (readers_dashboard, replicas_dashboard, rules_dashboard, collector_dashboard)
)


def texts() -> dict[Path, str]:
    """Return the text of each dashboard's file."""
    return {
        FOLDER / f"{one.file}.json": json.dumps(one.to_json(), indent=2, ensure_ascii=False) + "\n"
        for one in DASHBOARDS
    }


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file is not up to date.")
def main(check: bool) -> None:
    """Write the dashboards."""
    stale = [path for path, text in texts().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if check:
        for path in stale:
            click.echo(f"{path} is not what {Path(__file__).name} writes", err=True)
        sys.exit(1 if stale else 0)
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
