"""Records of one's own in memory, with what was done to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reticent.data.datasets import Splits
from reticent.data.own.encoding import standardised_columns
from reticent.data.own.recorded import Recorded

if TYPE_CHECKING:
    from reticent.features.standardising import ChannelStatistics


@dataclass(frozen=True)
class Line:
    """One line of the description: a column, and what becomes of it."""

    column: str
    kind: str
    how: str
    cost: str


@dataclass(frozen=True)
class OwnSplits(Splits):
    """Splits that were read from a user's file or folder.

    Attributes:
        form: `table`, `text`, `images` or `array`.
        lines: what became of each column.
        private_columns: the numbers of a record that have no public scale.
        missing_columns: for each of these, the number that is 1 where it is missing; -1: none is.
        blocks: how many columns take part; each has length at most 1.
        warnings: what the user should be told at once. Those among the notes follow from what was
            stated; others are as private as the records, and are written nowhere.
        recorded: how records became numbers, for others that come later.
    """

    form: str = "table"
    lines: tuple[Line, ...] = ()
    private_columns: tuple[int, ...] = ()
    missing_columns: tuple[int, ...] = ()
    blocks: int = 1
    warnings: tuple[str, ...] = ()
    recorded: Recorded | None = None

    def describe(self) -> str:
        """What was read and what becomes of it, as text.

        >>> from reticent.data.own import from_columns
        >>> columns = {"age": [20, 60] * 20, "ill": ["no", "yes"] * 20}
        >>> told = from_columns(columns, target="ill", classes="no,yes", bounds="age=0..120")
        >>> print(told.describe().splitlines()[1])
        age     numeric  0..120 to [-1, 1], 1 if missing  free
        """
        rows = [("column", "kind", "how it becomes numbers", "cost")]
        rows += [(line.column, line.kind, line.how, line.cost) for line in self.lines]
        widths = [max(len(row[place]) for row in rows) for place in range(3)]
        table = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]])
            for row in rows
        ]
        counts = f"{self.info.n_train:,} training and {self.info.n_test:,} test records"
        classes = f"{self.info.n_classes} classes: {', '.join(self.info.classes[:10])}"
        return "\n".join([*table, f"{counts}, {classes}", *(f"note: {x}" for x in self.notes)])

    def standardised(self, statistics: ChannelStatistics) -> OwnSplits:
        """Bring the columns without a public scale to the private mean and variance.

        The statistics are of these columns alone. Missing values become 0, the mean.
        """
        columns = list(self.private_columns)
        narrow = replace(
            self,
            train=(self.train[0][:, columns], self.train[1]),
            test=(self.test[0][:, columns], self.test[1]),
        )
        applied = statistics.apply(narrow)  # refuses statistics of other columns
        places = self.private_columns, self.missing_columns
        train = standardised_columns(self.train[0], applied.train[0], *places)
        test = standardised_columns(self.test[0], applied.test[0], *places)
        return replace(
            self, train=(train, self.train[1]), test=(test, self.test[1]), notes=applied.notes
        )
