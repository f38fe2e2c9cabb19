"""A matrix with a row for each stream and a name for each column."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]


class ColumnViews:
    """The columns of `rows`, (R, C), by name; a view is made at its first use, since few are used of most instances."""

    __slots__ = ("rows",)
    PLACES: ClassVar[Mapping[str, int]]
    """Where each column stands; a subclass has a slot for each."""

    def __init__(self, rows: Ints) -> None:
        self.rows = rows

    if not TYPE_CHECKING:  # a subclass says which there are

        def __getattr__(self, name: str) -> Ints:
            """Make a view; raises AttributeError for what is no column."""
            at = self.PLACES.get(name)
            if at is None:
                raise AttributeError(name)
            column = self.rows[:, at]
            setattr(self, name, column)
            return column
