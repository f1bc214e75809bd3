"""What if: the recorded transactions decided again under other rules, in virtual time (docs/inspect.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from pyspark.sql import SparkSession

    from checkback.query.notebook import Rows
    from checkback.query.plots import Plot
    from checkback.settings import Settings
    from checkback.what_if.replayed_tables import WhatIf


def plot(found: WhatIf) -> Plot:
    """The figure of a replay: how long transactions were pending, and how they ended, on both sides."""
    from checkback.what_if.plot import plot as drawn

    return drawn(found)


def groups_table(found: WhatIf) -> Rows:
    """A row for each producer group, those with the most differences first; and the sum."""
    from checkback.what_if import report

    return _table(report.group_rows(found), report.COLUMNS)


def changes_table(found: WhatIf) -> Rows:
    """The first transactions whose state would have been another."""
    from checkback.what_if import report

    return _table([report.change_row(change) for change in found.examples], report.CHANGE_COLUMNS)


def _table(rows: list[tuple[str, ...]], columns: tuple[str, ...]) -> Rows:
    import pandas as pd

    from checkback.query.notebook import Rows

    return Rows(pd.DataFrame(rows, columns=list(columns)))


def what_if(
    settings: Settings,
    changes: Mapping[str, Any],
    since: datetime | str | None = None,
    spark: SparkSession | None = None,
) -> WhatIf:
    """What would have been otherwise with these settings, as {"transaction.timeout": "30s"}; for notebooks.

    ``since``: only half messages that landed then or later, given as for `query`'s as_of. With ``spark`` it
    reads the tables, as those in a catalog need. Raises SettingsError, StorageError.
    """
    from checkback.query.versions.as_of import parse_as_of
    from checkback.what_if.replayed_tables import parse_changes, replay

    return replay(settings, parse_changes(changes), parse_as_of(since, name="since"), spark=spark)
