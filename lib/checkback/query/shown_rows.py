"""Rows as notebooks show them, and as figures need them: in pandas."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.storage.timestamps import python_times

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Rows:
    """Rows that notebooks show as a table, without truncating text."""

    frame: pd.DataFrame

    def _repr_html_(self) -> str:
        with self._whole():
            return str(self.frame.to_html(index=False, na_rep="")) if len(self.frame) else "<p>Nothing.</p>"

    def __repr__(self) -> str:
        with self._whole():
            return str(self.frame.to_string(index=False, na_rep="")) if len(self.frame) else "Nothing."

    def first(self, name: str) -> str:
        """Value of a column in the first row; "nothing" without rows."""
        return str(self.frame[name].iloc[0]) if len(self.frame) else "nothing"

    def _whole(self) -> AbstractContextManager[None]:
        import pandas as pd

        return pd.option_context("display.max_colwidth", None)


def table(rows: pa.Table, *columns: str, most: int = 20) -> Rows:
    """The first rows, of these columns or all; times are UTC in whole seconds, numbers have one decimal."""
    found = rows.select(columns) if columns else rows
    frame = in_pandas(found.slice(0, most))
    for field in found.schema:
        if pa.types.is_timestamp(field.type):
            frame[field.name] = frame[field.name].dt.floor("s")
        elif pa.types.is_floating(field.type):
            frame[field.name] = frame[field.name].round(1)
    return Rows(frame)


def in_pandas(rows: pa.Table) -> pd.DataFrame:
    """The rows in pandas; times are UTC, without a zone, and in Python's range."""
    found = python_times(rows)
    for place, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):
            found = found.set_column(place, field.name, found.column(place).cast(pa.timestamp("us")))
    frame: pd.DataFrame = found.to_pandas()
    return frame


def busiest(over_time: pa.Table, every: timedelta) -> datetime | None:
    """The end of the interval with the most pending, from rows of `pending_over_time`; None if there are none."""
    totals = over_time.group_by("minute").aggregate([("pending", "sum")])
    if not totals.num_rows:
        return None
    first = totals.sort_by([("pending_sum", "descending"), ("minute", "ascending")])["minute"][0]
    at: datetime = first.as_py()
    return at + every
