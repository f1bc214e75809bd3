"""Figures of what `Checkback` returns, for notebooks. Times are UTC; titles state the finding.

Colours are the colour-blind safe palette of Okabe and Ito; a group, outcome or state keeps its colour.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from checkback.query.shown_rows import in_pandas
from checkback.query.time_series import FAILED_TRY, MINUTE, in_words

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from matplotlib.axes import Axes

    from checkback.query.outage import Outage

_BLACK, _ORANGE, _SKY, _GREEN, _YELLOW, _BLUE, _RED, _PINK = (
    *("#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"),
)
_GREY, _PALE = "#999999", "#EEEEEE"
STATES = {"COMMIT": _BLUE, "ROLLBACK": _SKY, "DISCARD": _RED, "CANCEL": _GREY}
OUTCOMES = {
    "COMMIT": _BLUE,
    "ROLLBACK": _SKY,
    "UNKNOWN": _YELLOW,
    "NO_ANSWER": _RED,
    FAILED_TRY: _ORANGE,
    "SKIPPED": _GREY,
}
_IN_VAIN = ("UNKNOWN", "NO_ANSWER", FAILED_TRY)
_GROUPS = (_BLUE, _ORANGE, _GREEN, _PINK, _SKY, _RED)
_OTHERS = "other groups"
#: most panels of a figure
_PANELS = 4
#: bucket boundaries of the histogram of ages, in seconds
AGES = (0, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 3 * 3600, 12 * 3600, 86400, 3 * 86400)


class Plot(Figure):
    """A figure that notebooks display without pyplot's global state."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=96)
        return out.getvalue()


def ages(pending: pa.Table) -> Plot:
    """Age of pending transactions, by group: rows of `pending`."""
    found = in_pandas(pending.select(["producer_group", "age_s"]))
    found["bucket"] = np.clip(np.searchsorted(AGES, found["age_s"].fillna(0), side="right") - 1, 0, None)
    counted = found.groupby(["producer_group", "bucket"])["age_s"]
    rows = counted.agg(pending="size", oldest_s="max").reset_index()
    if rows.empty:
        return _nothing("Nothing is pending.")
    oldest = max(rows.to_dict("records"), key=lambda row: float(row["oldest_s"]))
    total = int(rows["pending"].sum())
    figure, axes = _figure(
        f"{total:,} pending, the oldest for {in_words(oldest['oldest_s'])}: {oldest['producer_group']}"
    )
    rows = _folded(rows, "pending")
    first, last = int(rows["bucket"].min()), int(rows["bucket"].max())
    places = list(range(first, last + 1))
    counts = rows.pivot_table(index="bucket", columns="producer_group", values="pending", aggfunc="sum", fill_value=0)
    _stack(axes, places, counts.reindex(places, fill_value=0), 0.9, _colours(rows, "pending"))
    axes.set_xticks(places, [_age_label(place) for place in places])
    axes.set_xlabel("age")
    axes.set_ylabel("pending")
    return figure


def pending(over_time: pa.Table, every: timedelta = MINUTE, outage: Outage | None = None) -> Plot:
    """Number pending over time, by group: rows of `pending_over_time`; an outage is shaded."""
    rows = in_pandas(over_time)
    if rows.empty:
        return _nothing("No data: nothing was pending.")
    figure, axes = _figure(_most(rows, every))
    _draw_pending(axes, rows, every)
    _in_time(axes, outage)
    return figure


def decisions(by_minute: pa.Table, every: timedelta = MINUTE, outage: Outage | None = None) -> Plot:
    """Decisions over time, by state: rows of `decisions`, all groups together."""
    rows = in_pandas(by_minute).groupby(["minute", "state"])["decisions"].sum().reset_index()
    if rows.empty:
        return _nothing("No data: nothing was decided.")
    by_state = rows.groupby("state")["decisions"].sum().to_dict()
    done = {"COMMIT": "committed", "ROLLBACK": "rolled back", "DISCARD": "discarded"}
    figure, axes = _figure(", ".join(f"{int(by_state.get(state, 0)):,} {word}" for state, word in done.items()))
    _bars_in_time(axes, rows, "state", "decisions", every, STATES)
    axes.set_ylabel(f"decisions in {in_words(every.total_seconds())}")
    _in_time(axes, outage)
    return figure


def outcomes(checks: pa.Table, every: timedelta = MINUTE, outage: Outage | None = None) -> Plot:
    """Outcomes of checks, one panel per endpoint, those with the most failures first: rows of `check_outcomes`."""
    rows = in_pandas(checks)
    if rows.empty:
        return _nothing("No data: there were no checks.")
    rows["endpoint"] = rows["endpoint"].fillna("no endpoint")
    rows["vain"] = rows["checks"].where(rows["outcome"].isin(_IN_VAIN), 0)
    sums = rows.groupby(["producer_group", "endpoint"])[["vain", "checks"]].sum()
    sums = sums.sort_values(["vain", "checks"], ascending=False)
    shown = sums.head(_PANELS)
    figure = Plot(figsize=(10, 1 + 1.9 * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    more = f"; {len(sums) - len(shown)} more endpoints are not shown" if len(sums) > len(shown) else ""
    figure.suptitle(
        f"{int(sums.vain.sum()):,} of {int(sums.checks.sum()):,} check attempts failed{more}", x=0.01, ha="left"
    )
    for axes, sum_ in zip(panels, shown.reset_index().to_dict("records"), strict=True):
        group, endpoint, vain, tries = (sum_[name] for name in ("producer_group", "endpoint", "vain", "checks"))
        of_it = rows[(rows["producer_group"] == group) & (rows["endpoint"] == endpoint)]
        _bars_in_time(axes, of_it, "outcome", "checks", every, OUTCOMES)
        axes.set_title(f"{group}, {endpoint}: {int(vain):,} of {int(tries):,} failed", fontsize=10)
        axes.set_ylabel("tries")
        _in_time(axes, outage)
    return figure


def latency(by_minute: pa.Table, outage: Outage | None = None) -> Plot:
    """Time from birth to decision, p50 and p99 by group and topic: rows of `decision_latency`."""
    rows = in_pandas(by_minute)
    if rows.empty:
        return _nothing("No data: nothing was decided.")
    counts = rows.groupby(["producer_group", "real_topic"])["decisions"].sum().sort_values(ascending=False)
    slowest = max(rows.to_dict("records"), key=lambda row: float(row["from_birth_p99_s"]))
    took = in_words(slowest["from_birth_p99_s"])
    title = f"Decisions took up to {took} (p99): {slowest['producer_group']}, {slowest['minute']:%Y-%m-%d %H:%M:%S}"
    figure, axes = _figure(title)
    for colour, (group, topic) in zip(_GROUPS, counts.index, strict=False):
        of_it = rows[(rows["producer_group"] == group) & (rows["real_topic"] == topic)].sort_values("minute")
        x = _days(of_it["minute"].to_numpy())
        axes.plot(x, of_it["from_birth_p50_s"], "o-", markersize=4, color=colour, label=f"{group}, {topic}: p50")
        axes.plot(x, of_it["from_birth_p99_s"], "^:", markersize=4, color=colour, label="p99")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: in_words(seconds)))
    axes.set_ylabel("from birth to decision")
    _in_time(axes, outage, from_zero=False)
    axes.legend(frameon=False, fontsize=8, ncols=2)
    return figure


def incident(over_time: pa.Table, checks: pa.Table, every: timedelta, outage: Outage) -> Plot:
    """An outage in one figure: the pending transactions above, the outcomes of the group's checks below."""
    piled, asked = in_pandas(over_time), in_pandas(checks)
    asked = asked[asked["producer_group"] == outage.group]
    if piled.empty or asked.empty:
        return _nothing("No data: there was no outage.")
    figure = Plot(figsize=(10, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_pending(above, piled, every)
    above.set_title(outage.told.partition("\n")[0].rstrip("."), fontsize=11)
    _bars_in_time(below, asked, "outcome", "checks", every, OUTCOMES)
    below.set_title(f"what its checks brought, in {in_words(every.total_seconds())} each", fontsize=10)
    below.set_ylabel("tries")
    for axes in (above, below):
        _in_time(axes, outage)
    return figure


def _figure(title: str) -> tuple[Plot, Axes]:
    figure = Plot(figsize=(10, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left")
    return figure, axes


def _nothing(text: str) -> Plot:
    figure = Plot(figsize=(10, 1.2), layout="constrained")
    figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=12, color="#555555")
    return figure


def _draw_pending(axes: Axes, rows: pd.DataFrame, every: timedelta) -> None:
    colours = _colours(rows, "pending")
    rows = _folded(rows, "pending")
    counts = rows.pivot_table(index="minute", columns="producer_group", values="pending", aggfunc="sum", fill_value=0)
    counts = counts[[name for name in colours if name in counts]]
    ends = _days(counts.index.to_numpy()) + every / timedelta(days=1)
    axes.stackplot(ends, counts.to_numpy().T, labels=counts.columns, colors=[colours[str(name)] for name in counts])
    axes.set_ylabel("pending")


def _bars_in_time(
    axes: Axes, rows: pd.DataFrame, by: str, value: str, every: timedelta, colours: dict[str, str]
) -> None:
    """Stacked bars as wide as the interval, in the order of the colours."""
    counts = rows.pivot_table(index="minute", columns=by, values=value, aggfunc="sum", fill_value=0)
    counts = counts[[name for name in colours if name in counts]]
    width = every / timedelta(days=1)
    _stack(axes, _days(counts.index.to_numpy()) + width / 2, counts, width * 0.9, colours)


def _stack(axes: Axes, places: Any, counts: pd.DataFrame, width: float, colours: dict[str, str]) -> None:
    below = 0 * counts.iloc[:, 0].to_numpy()
    for name in map(str, counts.columns):
        heights = counts[name].to_numpy()
        # Failures are distinguished by more than colour.
        hatch = "///" if name in ("DISCARD", "NO_ANSWER") else None
        axes.bar(
            places,
            heights,
            width,
            below,
            label=name,
            color=colours[name],
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
        )
        below = below + heights
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_PALE)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def _in_time(axes: Axes, outage: Outage | None, from_zero: bool = True) -> None:
    """A time axis in UTC; with an outage, limited to it and its margins, and shaded."""
    locator = AutoDateLocator(tz=timezone.utc)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        ConciseDateFormatter(locator, tz=timezone.utc)  # type: ignore[no-untyped-call]
    )
    if from_zero:
        _tidy(axes)
    else:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=_PALE)
    if outage is None or not outage.happened:
        return
    began, over = _days([outage.began, outage.began + outage.lasted])
    axes.axvspan(began, over, color=_BLACK, alpha=0.08, linewidth=0, zorder=0)
    axes.axvline(began, color=_BLACK, linewidth=1, linestyle="--")
    if outage.over is not None:
        axes.axvline(over, color=_BLACK, linewidth=1, linestyle="--")
    axes.set_xlim(*_days([outage.since, outage.until]))


def _colours(rows: pd.DataFrame, value: str) -> dict[str, str]:
    """A colour for each of the largest groups, assigned by name: the same in every figure of these tables."""
    largest = rows.groupby("producer_group")[value].sum().nlargest(len(_GROUPS)).index
    return {**dict(zip(sorted(largest), _GROUPS, strict=False)), _OTHERS: _GREY}


def _folded(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    """The rows with all but the largest groups merged into one."""
    kept = rows["producer_group"].isin(list(_colours(rows, value)))
    return rows.assign(producer_group=rows["producer_group"].where(kept, _OTHERS))


def _most(rows: pd.DataFrame, every: timedelta) -> str:
    totals = rows.groupby("minute")["pending"].sum().sort_values(ascending=False, kind="stable")
    if totals.iloc[0] == 0:
        return "At the end of no interval was anything pending"
    at = totals.index[0]
    largest = max(rows[rows["minute"] == at].to_dict("records"), key=lambda row: int(row["pending"]))
    end = largest["minute"] + every
    most = f"At most {int(totals.iloc[0]):,} pending, at {end:%Y-%m-%d %H:%M:%S}"
    return f"{most}: {int(largest['pending']):,} of {largest['producer_group']}"


def _days(times: Sequence[datetime] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Times as matplotlib represents them: in days."""
    days: np.ndarray[Any, Any] = date2num(times)  # type: ignore[no-untyped-call]
    return days


def _age_label(bucket: int) -> str:
    if bucket + 1 == len(AGES):
        return f"over {in_words(AGES[bucket])}"
    return f"{in_words(AGES[bucket])}\nto {in_words(AGES[bucket + 1])}"
