"""Rebuild figures 6 to 9 and the headline numbers of PolyServe.

Each table is a CSV file. A point whose row is there is not computed again, so that a second start goes on. Then the
tables of README.md are filled, and the pictures drawn if a Chromium is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sweeping"))

from polyserve_figures import figures
from polyserve_points import TABLES
from polyserve_tables import readme_tables
from rebuilding import rebuild

if __name__ == "__main__":
    rebuild(__doc__ or "", Path(__file__).parent, TABLES, readme_tables, figures)
