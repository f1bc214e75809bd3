"""The figure and the tables of a replay, for notebooks: how long transactions were pending, and how they ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from checkback.query.plots import STATES, Plot
from checkback.query.shown_rows import Rows
from checkback.query.time_series import in_words
from checkback.what_if.comparison import bucket_end
from checkback.what_if.records import State
from checkback.what_if.report import CHANGE_COLUMNS, COLUMNS, change_row, changes_in_words, group_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from checkback.what_if.comparison import Side
    from checkback.what_if.replayed_tables import WhatIf

_WAS, _NOW, _PENDING = "#999999", "#0072B2", "#F0E442"


def plot(found: WhatIf) -> Plot:
    """Left: the share of transactions decided within a time; right: how many ended in which state."""
    figures = found.total
    figure = Plot(figsize=(10, 3.6), layout="constrained")
    if not figures.recorded.transactions:
        figure.text(0.5, 0.5, "No data: there is no transaction to replay.", ha="center", va="center")
        return figure
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    what = changes_in_words(found) or "by the rules in force"
    figure.suptitle(f"{what}: {figures.saved:,} saved, {figures.lost:,} discarded", x=0.01, ha="left")
    sides = (("as recorded", figures.recorded, _WAS), ("what if", figures.what_if, _NOW))
    for name, side, colour in sides:
        _draw_share(left, name, side, colour)
    left.set_xscale("log")
    left.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: in_words(seconds)))
    left.set_xlabel("pending, from landing to decision")
    left.set_ylabel("share of transactions")
    left.set_ylim(0, 1.02)
    left.legend(frameon=False, fontsize=8, loc="upper left")
    begin = np.zeros(2)
    for state in (State.COMMIT, State.CANCEL, State.ROLLBACK, State.DISCARD, State.PENDING):
        counts = np.array([side.count(state) for _, side, _ in sides])
        colour, hatch = STATES.get(state.name, _PENDING), "///" if state is State.DISCARD else None
        if counts.any():
            right.barh([1, 0], counts, 0.6, begin, label=state.name, color=colour, hatch=hatch, edgecolor="white")
        begin += counts
    right.set_yticks([1, 0], [name for name, _, _ in sides])
    right.set_xlabel("transactions")
    right.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.15))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_share(axes: Axes, name: str, side: Side, colour: str) -> None:
    used = np.flatnonzero(side.pending)
    buckets = range(max(0, int(used[0]) - 1), int(used[-1]) + 1)
    seconds = [bucket_end(at) / 1000 for at in buckets]
    share = np.cumsum(side.pending)[list(buckets)] / side.transactions
    share[0] = 0
    axes.step(seconds, share, where="post", label=name, color=colour)


def groups_table(found: WhatIf) -> Rows:
    """A row for each producer group, those with the most differences first; and the sum."""
    return Rows(pd.DataFrame(group_rows(found), columns=list(COLUMNS)))


def changes_table(found: WhatIf) -> Rows:
    """The first transactions whose state would have been another."""
    return Rows(pd.DataFrame([change_row(change) for change in found.examples], columns=list(CHANGE_COLUMNS)))
