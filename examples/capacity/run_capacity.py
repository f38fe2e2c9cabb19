"""Compare what servers carry: a real vLLM on CPU with two settings, two of it behind the relay, and both simulated.

Each case is one `otel-llm capacity`; its answer is kept as JSON in this folder, beside its command and versions. Then
the tables of README.md are filled, and the pictures drawn if a Chromium is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "sweeping"))

from capacity_answers import comparisons, figures, interval_of, readme_tables
from capacity_cases import CASES, HERE, PROFILE, ROOT, Case, keep, load_results, search_command
from capacity_profile import processor, record_and_fit
from capacity_servers import Served, serving, vllm_version
from markdown_tables import insert
from png_pictures import draw_all

from otel_llm.export.records import version

FITTED = "profile"
"""The step that records and fits the profile, before the simulated cases."""
STEPS = (*(name for name, case in CASES.items() if not case.scenario), FITTED)
STEPS += tuple(name for name, case in CASES.items() if case.scenario)
EXAMPLES = """examples:
  python examples/capacity/run_capacity.py                     # what has no result yet; all: about 40 minutes
  python examples/capacity/run_capacity.py --case engine-b     # one case, anew
  python examples/capacity/run_capacity.py --readme            # only the tables and pictures, from the results
  python examples/capacity/run_capacity.py --case engine-b --folder mine --budget 2m    # a trial beside the results
"""


def main() -> None:
    """Run the cases that the command line names, and write the page."""
    asked = parser().parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    asked.work.mkdir(parents=True, exist_ok=True)
    for step in () if asked.readme else asked.case or STEPS:
        file = asked.folder / (PROFILE if step == FITTED else f"{step}.json")
        if asked.case or not file.exists():
            print(f"{step} ...", flush=True)
            run(step, asked)
    results = load_results(asked.folder)
    for name, result in results.items():
        print(f"{CASES[name].words}: {interval_of(result).words}")
    for sentence in comparisons(results):
        print(sentence)
    if asked.folder == HERE:
        insert(HERE / "README.md", readme_tables(results))
    if results:
        draw_all(asked.folder, figures(results))


def run(step: str, asked: argparse.Namespace) -> None:
    """Run a case, or record the profile."""
    if step == FITTED:
        check_environment(asked.vllm)
        record_and_fit(asked.vllm, asked.work, asked.folder / PROFILE.removesuffix(".yaml"))
        return
    case = CASES[step]
    if case.scenario is not None:
        keep(asked.folder, step, search(case, "", asked))
        return
    check_environment(asked.vllm)
    with serving(case, asked.vllm, asked.work) as served:
        keep(asked.folder, step, search(case, served.url, asked, served))


def search(case: Case, url: str, asked: argparse.Namespace, served: Served | None = None) -> dict[str, Any]:
    """Search for the capacity of a case; return the answer, and what it rests on."""
    command = search_command(case, url, asked.budget)
    page = asked.work / f"{case.name}.html"
    began, load_average = time.time(), os.getloadavg()[0]
    program = [sys.executable, "-m", "otel_llm.cli.main", *command[1:], "--html", str(page)]
    done = subprocess.run(program, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise SystemExit(f"{case.name}: the search failed with exit code {done.returncode}: {' '.join(command)}")
    versions = {"otel-llm": version(), "Python": platform.python_version()}
    about: dict[str, Any] = {"case": case.name, "command": " ".join(command)}
    if served is not None:
        versions["vLLM"] = vllm_version(asked.vllm)
        about["servers"] = list(served.commands)
        about["cores"] = {"replicas": list(served.cores), "all else": list(served.others)}
    return about | {
        "versions": versions,
        "machine": f"{os.cpu_count()} cores of {processor()}",
        "started": datetime.fromtimestamp(began, UTC).strftime("%Y-%m-%d %H:%M"),
        "load_average": round(load_average, 2),
        "seconds": round(time.time() - began, 1),
        "exit_code": done.returncode,
        "answer": json.loads(done.stdout),
    }


def check_environment(vllm: Path) -> None:
    """Refuse to start without the environment of vLLM."""
    if not (vllm / "ready").exists():
        raise SystemExit(f"there is no vLLM in {vllm}: run `make vllm-env`, or name one by --vllm")


def absolute(text: str) -> Path:
    """Return a path that is good in every folder: the searches run in the root."""
    return Path(text).absolute()


def parser() -> argparse.ArgumentParser:
    """Return the options of the command line."""
    found = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument(
        "--case", choices=STEPS, action="append", help="run it anew; may be repeated; default: all that have no result"
    )
    found.add_argument("--readme", action="store_true", help="run nothing: tables and pictures from the results")
    found.add_argument("--budget", help="a duration, in place of that of each measured search: for a trial")
    found.add_argument("--folder", type=absolute, default=HERE, help="where the results are (default: this example's)")
    found.add_argument(
        "--work", type=absolute, default=ROOT / "build" / "capacity", help="for logs, the journal and the HTML pages"
    )
    found.add_argument("--vllm", type=absolute, default=ROOT / ".venv-vllm", help="the environment of vLLM")
    return found


if __name__ == "__main__":
    main()
