"""A replay's tables, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from checkback.inspect.notebook import Rows
from checkback.what_if import report

if TYPE_CHECKING:
    from checkback.what_if.result import WhatIf


def groups_table(found: WhatIf) -> Rows:
    """A row for each producer group, those with the most differences first; and the sum."""
    return Rows(pd.DataFrame(report.group_rows(found), columns=list(report.COLUMNS)))


def changes_table(found: WhatIf) -> Rows:
    """The first transactions whose state would have been another."""
    rows = [report.change_row(change) for change in found.examples]
    return Rows(pd.DataFrame(rows, columns=list(report.CHANGE_COLUMNS)))
