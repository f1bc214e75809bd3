"""Values of a column from one to another: as a condition, and the files that may contain them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Span:
    """Values of an integer column: at least ``first`` and below ``end`` (None = any); without ``first`` also null."""

    column: str
    first: int | None
    end: int | None

    @property
    def condition(self) -> str:
        """SQL. Plain comparisons: their statistics allow file skipping."""
        if self.first is None:
            return f"({self.column} < {self.end} OR {self.column} IS NULL)"
        return f"{self.column} >= {self.first}" + ("" if self.end is None else f" AND {self.column} < {self.end}")

    def files(self, actions: pa.Table) -> pa.Table:
        """Those of a table's add actions, flattened, whose files may contain such a value, as far as is known."""
        for bound, which, outside in ((self.first, "max", pc.less), (self.end, "min", pc.greater_equal)):
            if bound is None or f"{which}.{self.column}" not in actions.schema.names:
                continue
            skipped = outside(actions.column(f"{which}.{self.column}"), bound)
            if self.first is None:
                if f"null_count.{self.column}" not in actions.schema.names:
                    continue
                skipped = pc.and_kleene(skipped, pc.equal(actions.column(f"null_count.{self.column}"), 0))
            actions = actions.filter(pc.invert(skipped.fill_null(False)))
        return actions
