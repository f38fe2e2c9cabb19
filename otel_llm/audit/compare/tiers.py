"""Classes as tiers: the share of each class's requests that would have met each class's deadline, side by side.

PolyServe's figures 6 and 7 show attainment as a whole and by tier. Here each tier is also applied to the requests of
the others: a class that would meet a stricter deadline is served too well or sold too cheaply.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_llm.audit.kernel.judge_batch import judge_batch

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    import pyarrow as pa

    from otel_llm.slo.classes import SloClasses

GROUP: Final = ("slo_class", "measured_at", "model", "instance")
COUNTS: Final = ("met_true", "met_false", "met_null")
COLUMNS: Final = (*GROUP, "tier", "requests", *COUNTS, "attainment")
"""The columns of `Tiers.frame`, in order."""

Key = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Met:
    """Counts of requests by whether they met a deadline; `unknown`: without a verdict."""

    true: int = 0
    false: int = 0
    unknown: int = 0

    def __add__(self, other: Met) -> Met:
        return Met(self.true + other.true, self.false + other.false, self.unknown + other.unknown)

    @property
    def requests(self) -> int:
        """Return the number of requests."""
        return self.true + self.false + self.unknown

    @property
    def attainment(self) -> float | None:
        """Return met / (met + not met); None if both are 0."""
        judged = self.true + self.false
        return self.true / judged if judged else None

    def cells(self) -> dict[str, Any]:
        """Return the counts with their names."""
        counts = dict(zip(COUNTS, (self.true, self.false, self.unknown), strict=True))
        return {"requests": self.requests, **counts, "attainment": self.attainment}


@dataclass(frozen=True, slots=True)
class Tiers:
    """The counts of each group under each tier.

    `counts`: by (slo_class, measured_at, model, instance), then by the name of the tier; every group has every tier.
    `names` are the tiers, in the order of the SLO file.
    """

    names: tuple[str, ...]
    counts: dict[Key, dict[str, Met]]

    def by(self, *names: str) -> dict[Key, dict[str, Met]]:
        """Return the counts summed over all but the named parts of GROUP."""
        places = [GROUP.index(name) for name in names]
        found: dict[Key, dict[str, Met]] = {}
        for group, tiers in self.counts.items():
            mine = found.setdefault(tuple(group[place] for place in places), dict.fromkeys(self.names, Met()))
            for name, met in tiers.items():
                mine[name] += met
        order = {name: place for place, name in enumerate(self.names)}
        return dict(
            sorted(found.items(), key=lambda one: [(order.get(str(part), len(order)), str(part)) for part in one[0]])
        )

    def own(self, *names: str) -> dict[Key, Met]:
        """Return each group's counts under its requests' own classes, summed as by `by`."""
        found: dict[Key, Met] = {}
        places = [GROUP.index(name) for name in names]
        for group, tiers in self.counts.items():
            key = tuple(group[place] for place in places)
            found[key] = found.get(key, Met()) + tiers[str(group[0])]
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each group and tier, with COLUMNS."""
        return [
            {**dict(zip(GROUP, group, strict=True)), "tier": name, **met.cells()}
            for group, tiers_of in self.by(*GROUP).items()
            for name, met in tiers_of.items()
        ]

    @property
    def frame(self) -> pd.DataFrame:
        """Return the rows as a DataFrame; counts of requests, `attainment` a share of 0..1."""
        import pandas as pd

        kinds = {**dict.fromkeys((*GROUP, "tier"), "string"), "attainment": "Float64"}
        rows = self.rows
        return pd.DataFrame(
            {name: pd.Series([row[name] for row in rows], dtype=kinds.get(name, "Int64")) for name in COLUMNS}
        )

    def summary(self) -> dict[str, list[dict[str, Any]]]:
        """Return the object of `--format json`: lists by class, model and instance, each with its tiers."""
        return {
            "by_class": self._cells("measured_at", "slo_class"),
            "by_model": self._cells("measured_at", "model", "slo_class"),
            "by_instance": self._cells("measured_at", "instance", "slo_class"),
        }

    def _cells(self, *names: str) -> list[dict[str, Any]]:
        return [
            {**dict(zip(names, group, strict=True)), "tiers": {name: met.cells() for name, met in tiers.items()}}
            for group, tiers in self.by(*names).items()
        ]


class Judging:
    """The counts, batch by batch, so that one reading serves the audit too: pass `add` to `audit.load(observe=...)`."""

    def __init__(self, classes: SloClasses) -> None:
        self._classes = classes
        self._counts: dict[Key, dict[str, Met]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Judge a batch of STREAMS by its own classes, and by each class as if it were its tier."""
        mine = judge_batch(batch, self._classes)
        groups = list(zip(*(mine.column(name).to_pylist() for name in GROUP), strict=True))
        for name in self._classes.names:
            met = judge_batch(batch, self._classes.judging(name)).column("met").to_pylist()
            for (group, one), number in Counter(zip(groups, met, strict=True)).items():
                tiers_of = self._counts.setdefault(group, dict.fromkeys(self._classes.names, Met()))
                tiers_of[name] += Met(number * (one is True), number * (one is False), number * (one is None))

    def result(self) -> Tiers:
        """Return the counts so far."""
        return Tiers(self._classes.names, {group: dict(tiers_of) for group, tiers_of in self._counts.items()})


def tiers(streams: Iterable[pa.RecordBatch], classes: SloClasses) -> Tiers:
    """Judge every stream by its own class, and by each class as if it were its tier.

    `streams` are batches of STREAMS, as `audit.load_streams` gives them; memory is that of one batch.
    """
    judging = Judging(classes)
    for batch in streams:
        judging.add(batch)
    return judging.result()
