"""The worst outage of producer groups: since when, until when, and the damage they did (`outage_questions`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from checkback.query.time_series import in_words, interval_for
from checkback.query.versions.as_of import parse_as_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

#: margin shown before and after an outage, as a fraction of its length; and at least
_MARGIN, _LEAST_MARGIN = 0.5, timedelta(seconds=20)


@dataclass(frozen=True)
class Outage:
    """An outage. ``over`` None = it goes on; ``last``: its last failed check; ``told``: three sentences about it."""

    group: str
    outcome: str
    began: datetime
    over: datetime | None
    last: datetime
    told: str

    def __str__(self) -> str:
        return self.told

    @property
    def happened(self) -> bool:
        """Whether there was an outage."""
        return bool(self.group)

    @property
    def lasted(self) -> timedelta:
        """From the first failed check to the next answer, or to the last failed check."""
        return (self.over or self.last) - self.began

    @property
    def since(self) -> datetime:
        """Its beginning, with a margin."""
        return self.began - max(_MARGIN * self.lasted, _LEAST_MARGIN)

    @property
    def until(self) -> datetime:
        """Its end, with a margin."""
        return self.began + self.lasted + max(_MARGIN * self.lasted, _LEAST_MARGIN)

    @property
    def every(self) -> timedelta:
        """An interval for plots."""
        return interval_for(self.until - self.since)

    def around(self, rows: pa.Table, time: str = "minute") -> pa.Table:
        """The rows from ``since`` to ``until``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        first, last = (pa.scalar(at, pa.timestamp("us", "UTC")) for at in (self.since - self.every, self.until))
        return rows.filter(pc.and_(pc.greater_equal(rows[time], first), pc.less_equal(rows[time], last)))


def worst_of(outages: Iterable[dict[str, Any]], as_of: datetime | str | None) -> Outage:
    """The worst of these rows of `outages_question`; without rows the outage that did not happen, at ``as_of``."""
    harm = ("discarded", "still_pending", "transactions", "checks")
    row = min(
        outages,
        key=lambda row: (*(-row[name] for name in harm), row["began_at"], row["producer_group"] or ""),
        default=None,
    )
    if row is None:
        now = parse_as_of(as_of) or datetime.now(timezone.utc)
        return Outage("", "", now, now, now, "No outage: no group's checks failed twice in a row.")
    began, over = row["began_at"], row["over_at"]
    lines = [_what(row["producer_group"], row["outcome"], began, over, row["said"]), _asked(row), _harm(row)]
    return Outage(row["producer_group"], row["outcome"], began, over, row["last_vain_at"], "\n".join(lines))


def _what(group: str, outcome: str, began: datetime, over: datetime | None, said: str | None) -> str:
    did = "answered nothing but UNKNOWN" if outcome == "UNKNOWN" else "did not answer"
    until = f"until {over:%H:%M:%S} ({in_words((over - began).total_seconds())})" if over else "and still does"
    if over is None and outcome != "UNKNOWN":
        until = "and still does not"
    return f"{group} {did} from {began:%Y-%m-%d %H:%M:%S} UTC {until}" + (f": {said}." if said else ".")


def _asked(row: dict[str, Any]) -> str:
    about, where = _number(row["transactions"], "transaction"), ", ".join(row["endpoints"]) or "no endpoint"
    return f"It was asked {_number(row['checks'], 'time')} without success about {about}, at {where}."


def _harm(row: dict[str, int | float]) -> str:
    decided = f"{row['decided']:,} were committed or rolled back later"
    if row["decided"]:
        decided += (
            f", half of them within {in_words(row['delay_p50_s'])}, the last after {in_words(row['delay_max_s'])}"
        )
    return f"Of these {row['discarded']:,} were discarded, {row['still_pending']:,} are still pending, {decided}."


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
