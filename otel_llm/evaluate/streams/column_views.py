"""A matrix with a row for each stream and a name for each column."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]


class ColumnViews:
    """The columns of `rows`, (R, C) int64, by name; views are created at first use, since most instances use few."""

    __slots__ = ("rows",)
    PLACES: ClassVar[Mapping[str, int]]
    """The index of each column; a subclass has a slot for each."""

    def __init__(self, rows: Ints) -> None:
        self.rows = rows

    if not TYPE_CHECKING:  # a subclass declares the columns

        def __getattr__(self, name: str) -> Ints:
            """Return a view of a column, (R,).

            Raises:
                AttributeError: there is no column of this name.
            """
            at = self.PLACES.get(name)
            if at is None:
                raise AttributeError(name)
            column = self.rows[:, at]
            setattr(self, name, column)
            return column
