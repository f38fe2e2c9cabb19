"""The short set of the matrix: the packages that are used most, recorded as promised and invisible to their callers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.requirements import skip_without

from compat.matrix import ENVIRONMENTS, MATRIX, Case
from compat.runner import Runner

SHORT = [case for case in MATRIX if case.short]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as running:
        yield running


def test_the_short_set_takes_three_environments_at_most() -> None:
    assert len({case.environment for case in SHORT}) <= 3
    assert len({case.packages[0] for case in SHORT}) >= 10


@pytest.mark.parametrize("case", SHORT, ids=lambda case: case.name)
def test_a_package_is_recorded_as_promised(case: Case, runner: Runner) -> None:
    environment = ENVIRONMENTS[case.environment]
    if not environment.ready:
        skip_without("compat")
    verdicts = list(runner.run(case, environment, case.short, case.ways[:1]))
    faults = {
        f"{one.mode}, {one.variant}, {one.way}": one.faults
        for one in verdicts
        if one.faults and not case.explains(one.mode)
    }
    assert faults == {}
    assert verdicts
