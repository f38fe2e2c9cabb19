"""`make compat`: run the matrix, or the cases that are named, and write the table."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from compat import hosts
from compat.matrix import ENVIRONMENTS, MATRIX, Case
from compat.report import TABLE, Line, environments_of, lines_of, write
from compat.runner import Runner


def main() -> int:
    """Run; return the exit status: 1 if a promise was not kept and no reason is known."""
    parser = argparse.ArgumentParser(prog="python -m compat", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="cases, environments, or `hosts`; without any all run and the page is written"
    )
    parser.add_argument("--make", action="store_true", help="only make the environments of the short set")
    parser.add_argument("--delete", action="store_true", help="remove each environment once its cases ran")
    given = parser.parse_args()
    if given.make:
        for name in environments_of(case for case in MATRIX if case.short):
            ENVIRONMENTS[name].make()
        return 0
    if given.names == ["hosts"]:
        return 1 if hosts.run()[1] else 0
    known = {name for case in MATRIX for name in (case.name, case.script, case.environment)}
    if unknown := set(given.names) - known:
        parser.error(f"no such case or environment: {', '.join(sorted(unknown))}")
    cases = [case for case in MATRIX if not given.names or {case.name, case.script, case.environment} & {*given.names}]
    lines, unexplained = _run(cases, delete=given.delete)
    if not given.names:
        servers, failed = hosts.run()
        unexplained += failed
        write(lines, servers)
        print(f"written: {TABLE}")
    return 1 if unexplained else 0


def _run(cases: list[Case], *, delete: bool) -> tuple[list[Line], int]:
    made: dict[str, list[Line]] = {}
    unexplained = 0
    with Runner() as runner:
        for name in environments_of(cases):
            environment = ENVIRONMENTS[name]
            try:
                environment.make()
            except subprocess.CalledProcessError as error:
                print(f"{name}: cannot be made: {error}", file=sys.stderr)
                unexplained += 1
                continue
            for case in cases:
                if case.environment != name:
                    continue
                started = time.monotonic()
                verdicts = list(runner.run(case, environment))
                version = environment.version(case.packages[0])
                made[case.name] = lines_of(case, version, verdicts, runner.warnings.get(case.name, ()))
                unexplained += sum(bool(one.faults) and not case.explains(one.mode) for one in verdicts)
                for line in made[case.name]:
                    print(line.cells(), flush=True)
                print(f"  {case.name}: {time.monotonic() - started:.0f} s", flush=True)
            if delete:
                environment.delete()
    return [line for case in cases for line in made.get(case.name, ())], unexplained


if __name__ == "__main__":
    sys.exit(main())
