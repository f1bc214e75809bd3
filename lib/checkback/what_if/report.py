"""What a replay says, as rows of a table, in words, and as JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from checkback.messages.durations import format_duration
from checkback.storage.timestamps import iso
from checkback.what_if.comparison import bucket_end
from checkback.what_if.records import State
from checkback.what_if.replayed_tables import SETTINGS, WhatIf

if TYPE_CHECKING:
    from checkback.what_if.comparison import Figures, Side
    from checkback.what_if.replayed_tables import Change

#: columns of the table of groups, and of that of transactions
COLUMNS = ("group", "transactions", "discarded", "saved", "lost", "checks", "assumed", "pending p50", "p99", "longest")
CHANGE_COLUMNS = (
    "queue/offset",
    "transaction",
    "group",
    "landed",
    "was",
    "after",
    "checks",
    "what if",
    "after",
    "checks",
)
_DURATIONS = ("timeout", "check_interval", "max_age", "check_jitter")


def heading(found: WhatIf) -> str:
    """Which rules, and which time."""
    period = f"{found.batches:,} batches from {_stamp(found.since)} to {_stamp(found.until)}"
    return f"{changes_in_words(found) or 'the rules that were in force'}; {period}"


def changes_in_words(found: WhatIf) -> str:
    """As "transaction.timeout 6s -> 30s"; empty = none."""
    both = ((name, _text(name, getattr(found.rules, name)), value) for name, value in found.changes.items())
    return ", ".join(f"{SETTINGS[name]} {was} -> {_text(name, value)}" for name, was, value in both)


def group_rows(found: WhatIf) -> list[tuple[str, ...]]:
    """COLUMNS: a row for each group, those with the most differences first; and the sum."""
    groups = sorted(found.groups.items(), key=lambda each: (-_differences(each[1]), each[0]))
    rows = [_row(name, figures) for name, figures in groups]
    return [*rows, _row("all", found.total)] if len(rows) > 1 else rows


def change_row(change: Change) -> tuple[str, ...]:
    """CHANGE_COLUMNS."""
    return (
        f"{change.queue_id}/{change.queue_offset}",
        change.transaction_id,
        change.producer_group,
        _stamp(change.landed_at),
        change.was,
        _after(change.was_at, change.landed_at),
        str(change.was_checks),
        change.now,
        _after(change.now_at, change.landed_at),
        f"{change.now_checks} ({change.assumed} assumed)" if change.assumed else str(change.now_checks),
    )


def conclusion(found: WhatIf) -> list[str]:
    """What came of it, and how far it is to be believed."""
    total = found.total
    same, wrong = total.recorded.transactions, total.not_reproduced
    lines = []
    if found.changes:
        checks, was = total.what_if.checks, total.recorded.checks
        lines.append(
            f"about {total.saved:,} discarded transactions would have been saved, {total.lost:,} others discarded, "
            f"{total.otherwise:,} have ended otherwise; about {checks:,} checks instead of {was:,}"
        )
        lines.append(f"{total.assumed:,} of these checks were never asked for: their answers are assumed")
    lines.append(
        f"by the rules in force the replay comes to what happened for {same:,} of {same + wrong:,} transactions"
    )
    if wrong:
        lines.append(f"the other {wrong:,} are left out")
    return lines


def as_json(found: WhatIf) -> dict[str, Any]:
    """The figures as an object: durations in ms, times in UTC."""
    return {
        "rules": {SETTINGS[name]: value for name, value in asdict(found.rules).items()},
        "changes": {SETTINGS[name]: value for name, value in found.changes.items()},
        "since": iso(found.since),
        "until": iso(found.until),
        "batches": found.batches,
        "total": _figures(found.total),
        "groups": [{"producer_group": name, **_figures(each)} for name, each in sorted(found.groups.items())],
    }


def change_as_json(change: Change) -> dict[str, Any]:
    """A transaction as an object."""
    return {name: iso(value) if isinstance(value, datetime) else value for name, value in asdict(change).items()}


def _differences(figures: Figures) -> int:
    return figures.saved + figures.lost + figures.otherwise


def _row(name: str, figures: Figures) -> tuple[str, ...]:
    was, now = figures.recorded, figures.what_if
    return (
        name,
        f"{was.transactions:,}",
        _both(f"{was.count(State.DISCARD):,}", f"{now.count(State.DISCARD):,}"),
        f"{figures.saved:,}",
        f"{figures.lost:,}",
        _both(f"{was.checks:,}", f"{now.checks:,}"),
        f"{figures.assumed:,}",
        *(_both(_duration(was.quantile(share)), _duration(now.quantile(share))) for share in (0.5, 0.99)),
        _both(_duration(was.longest), _duration(now.longest)),
    )


def _both(was: str, now: str) -> str:
    return was if was == now else f"{was} -> {now}"


def _figures(figures: Figures) -> dict[str, Any]:
    return {
        "saved": figures.saved,
        "lost": figures.lost,
        "otherwise": figures.otherwise,
        "assumed": figures.assumed,
        "not_reproduced": figures.not_reproduced,
        "recorded": _side(figures.recorded),
        "what_if": _side(figures.what_if),
    }


def _side(side: Side) -> dict[str, Any]:
    pending = [
        {"up_to_ms": bucket_end(at), "transactions": int(count)} for at, count in enumerate(side.pending) if count
    ]
    return {
        "transactions": side.transactions,
        "states": {state.name: side.count(state) for state in State},
        "checks": side.checks,
        "pending_p50_ms": side.quantile(0.5),
        "pending_p99_ms": side.quantile(0.99),
        "pending_longest_ms": side.longest,
        "pending": pending,
    }


def _text(name: str, value: Any) -> str:
    """A rule as in the settings."""
    if name in _DURATIONS:
        return format_duration(timedelta(milliseconds=value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _duration(ms: int) -> str:
    seconds = ms / 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f}{unit}"
    return f"{seconds:.1f}s" if ms >= 1000 else f"{ms}ms"


def _after(at: datetime | None, landed: datetime) -> str:
    return "-" if at is None else _duration(max(0, (at - landed) // timedelta(milliseconds=1)))


def _stamp(at: datetime) -> str:
    return at.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
