"""An evening on call, as tables: a group that was down, one that answers UNKNOWN, one that is down, one that is well.

`python -m support.outage FILE` draws the first from these tables: the picture of the README.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from checkback.storage.log.commit_reader import CommitReader
from support.query_times import append, made_at, table
from support.stories import Row, Transaction, checkpoint, ms

#: not long ago: Delta refuses to look back further than it keeps the files of old versions
NOW = datetime.now(timezone.utc).replace(second=5, microsecond=0) - timedelta(hours=1)
BEGAN, OVER = NOW - timedelta(minutes=40), NOW - timedelta(minutes=30)
#: of those that are stuck now
UNKNOWN_SINCE, DOWN_SINCE = NOW - timedelta(minutes=8), NOW - timedelta(minutes=10)
#: when the one message is delivered that is scheduled
DELIVER_AT = NOW + timedelta(hours=2)
CHECK_MAX = 9
SETTINGS = ["transaction.check_max=9", "reconcile.partitions=2"]
REFUSED = "connection refused"
_TIMES = {
    "half": "store_timestamp",
    "op": "store_timestamp",
    "topics/a": "published_at",
    "decisions": "decided_at",
    "discarded": "discarded_at",
    "check_requests": "requested_at",
    "check_answers": "answered_at",
}
_SLICE = timedelta(minutes=5)


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def _of(group: str, one: Transaction, rows: list[Row]) -> list[Row]:
    name = f"{group}-{one.offset}"
    return [(table, row | {"producer_group": group, "transaction_id": name}) for table, row in rows]


def _answer(one: Transaction, times: int, at: datetime, group: str, outcome: str) -> Row:
    row: dict[str, Any] = {"real_topic": "a", "check_times": times, "endpoint": f"http://{group}:8901/check"}
    row |= {"outcome": outcome, "error": REFUSED if outcome == "NO_ANSWER" else None, "latency_ms": 12}
    row |= {"answered_at": at, "failed_tries": [], "batch_id": 0, "delivered": outcome != "NO_ANSWER"}
    return "check_answers", one.key | row


def _well(one: Transaction, group: str) -> list[Row]:
    """Committed by its producer after three seconds."""
    at = one.born + _seconds(3)
    return _of(group, one, [one.half(), one.op(), one.published(published_at=at), one.decision(decided_at=at)])


def _silent(one: Transaction, group: str, outcome_at: Any) -> list[Row]:
    """Without an op: checked every minute until it is decided, or given up; ``outcome_at``: what a check brings."""
    rows = [one.half()]
    for times in range(1, CHECK_MAX + 1):
        asked = one.born + _seconds(7 + 60 * (times - 1))
        if asked >= NOW:
            return _of(group, one, rows)
        outcome = outcome_at(asked)
        rows += [one.check(times), _answer(one, times, asked + _seconds(0.5), group, outcome)]
        if outcome == "COMMIT":
            at = asked + _seconds(2)
            rows += [one.op(source="check", store_timestamp=asked + _seconds(1)), one.published(published_at=at)]
            rows.append(one.decision(source="check", check_times=times, decided_at=at))
            return _of(group, one, rows)
    at = one.born + _seconds(7 + 60 * CHECK_MAX)
    if at < NOW:
        given_up = {"check_times": CHECK_MAX}
        rows += [one.decision("DISCARD", decided_at=at, **given_up), one.discarded(discarded_at=at, **given_up)]
    return _of(group, one, rows)


def rows() -> Iterator[Row]:
    """All rows of that evening."""
    for number in range(55 * 6):  # well: one in ten seconds
        yield from _well(Transaction(0, number, NOW - timedelta(minutes=56) + _seconds(10 * number)), "payments")
    receipt = Transaction(0, 55 * 6, NOW - timedelta(minutes=1))
    scheduled = receipt.decision(decided_at=receipt.born + _seconds(3), deliver_at=DELIVER_AT)
    yield from _of("payments", receipt, [receipt.half(), receipt.op(), scheduled])
    for number in range(50 * 10):  # every other says nothing
        one = Transaction(1, number, NOW - timedelta(minutes=56) + _seconds(6 * number))
        if number % 2:
            yield from _well(one, "orders")
        else:
            yield from _silent(one, "orders", lambda at: "NO_ANSWER" if BEGAN <= at < OVER else "COMMIT")
    for number in range(3):
        one = Transaction(2, number, UNKNOWN_SINCE + _seconds(20 * number - 7))
        yield from _silent(one, "invoices", lambda _: "UNKNOWN")
    for number in range(18):
        one = Transaction(3, number, DOWN_SINCE - timedelta(minutes=3) + _seconds(40 * number))
        yield from _silent(one, "shipping", lambda at: "NO_ANSWER" if at >= DOWN_SINCE else "COMMIT")


def make(root: Path) -> None:
    """The tables, with a commit every five minutes, each made when its rows say."""
    slices: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for name, row in rows():
        slices.setdefault((name, (row[_TIMES[name]] - NOW) // _SLICE), []).append(row)
    for name in _TIMES:
        commits = CommitReader.of(table(root, name))
        assert commits is not None
        made_at(commits.place, 0, ms(NOW - timedelta(hours=2)))
    for (name, number), content in sorted(slices.items(), key=lambda item: item[0]):
        version = append(root, name, content)
        made_at(str(root / name), version, ms(min(NOW, NOW + (number + 1) * _SLICE)))
    checkpoint(root, done=NOW - _seconds(5))


def main(file: str) -> None:
    """The picture of the orders' outage."""
    from checkback import Checkback, plots

    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        cb = Checkback(folder, overrides=SETTINGS)
        outage = cb.worst_outage(NOW)
        over_time = cb.pending_over_time(NOW, since=outage.since, every=outage.every)
        checks = cb.check_outcomes(NOW, since=outage.since, every=outage.every)
        picture = plots.incident(outage.around(over_time), outage.around(checks), outage.every, outage)
        picture.savefig(file, dpi=110)
    print(f"{file}: {Path(file).stat().st_size // 1000} kB\n{outage}")


if __name__ == "__main__":
    main(sys.argv[1])
