"""The promises, read from the tables by deltalake alone: nothing of Checkback's own reading is trusted."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from crash.fates import CHECK_MAX, COMMIT, DISCARD, GROUP, TOPICS, body, ended_by_op, fate, state

#: between the look at what has landed and the time of the batch
_PLANNING = timedelta(seconds=2)
_MS = timedelta(milliseconds=1)
#: state of an op that says that a check counts
_COUNTED = "COUNTED"
CANCEL = "CANCEL"


def rows(root: str, table: str, *columns: str) -> list[dict[str, Any]]:
    """Some columns of a table; nothing if there is none."""
    place = f"{root}/{table}"
    if not _is_table(place):
        return []
    # Not to_pyarrow_table: it may abort a command that ends (apache/arrow#34314).
    files = DeltaTable(place).file_uris()
    return pq.read_table(files, columns=list(columns)).to_pylist() if files else []


def _is_table(place: str) -> bool:
    return os.path.isdir(place) and DeltaTable.is_deltatable(place)


def count(root: str, table: str) -> int:
    """Rows of a table, by its log."""
    place = f"{root}/{table}"
    if not _is_table(place):
        return 0
    return DeltaTable(place).count()


def decided(root: str) -> set[int]:
    """The offsets that have a decision."""
    return {row["queue_offset"] for row in rows(root, "decisions", "queue_offset")}


def cancelled(root: str) -> set[int]:
    """The offsets whose scheduled message was cancelled."""
    return {row["queue_offset"] for row in rows(root, "decisions", "queue_offset", "state") if row["state"] == CANCEL}


@dataclass
class Books:
    """What is wrong. lost: not decided, or committed and not published; duplicated: decided or published twice."""

    transactions: int = 0
    lost: list[int] = field(default_factory=list)
    duplicated: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Is every promise kept?"""
        return not (self.lost or self.duplicated or self.faults)


def audit(
    root: str, timeout: timedelta, interval: timedelta, finished: bool = True, check_max: int = CHECK_MAX
) -> Books:
    """P1 to P5 over all tables. ``finished``: nothing is pending any more, and no batch is half done."""
    books = Books()
    halves = Counter(row["queue_offset"] for row in rows(root, "half", "queue_offset"))
    born = {row["queue_offset"]: row["born_timestamp"] for row in rows(root, "half", "queue_offset", "born_timestamp")}
    books.transactions = len(halves)
    decisions: dict[int, dict[str, Any]] = {}
    cancels: dict[int, dict[str, Any]] = {}
    for row in rows(root, "decisions", "queue_offset", "state", "check_times", "decided_at", "deliver_at"):
        of_kind = cancels if row["state"] == CANCEL else decisions
        if row["queue_offset"] in of_kind:
            books.duplicated.append(row["queue_offset"])
        of_kind[row["queue_offset"]] = row
    published: Counter[int] = Counter()
    for topic in TOPICS:
        for row in rows(root, f"topics/{topic}", "half_queue_offset", "body", "producer_group"):
            offset = row["half_queue_offset"]
            published[offset] += 1
            if bytes(row["body"]) != body(offset) or TOPICS[offset % len(TOPICS)] != topic:
                books.faults.append(f"{offset} is published with another's body or topic")
    discarded = Counter(row["queue_offset"] for row in rows(root, "discarded", "queue_offset"))
    books.duplicated += [offset for found in (published, discarded) for offset, times in found.items() if times > 1]
    for offset in halves:
        end = decisions[offset]["state"] if offset in decisions else None
        if end is None and finished:
            books.lost.append(offset)
        if end not in (None, state(offset)) and (end != DISCARD or ended_by_op(offset)):
            books.faults.append(f"{offset} is decided {end}, not {state(offset)}")
        if finished and end == COMMIT and decisions[offset]["deliver_at"] is None and offset not in published:
            books.lost.append(offset)
        if end not in (None, COMMIT) and offset in published:
            books.faults.append(f"{offset} is {end} and published")
        if finished and (end == DISCARD or offset in cancels) != (offset in discarded):
            books.faults.append(f"{offset} is {end} and {'' if offset in discarded else 'not '}in discarded")
    books.faults += [f"{offset} is decided without a half" for offset in decisions if offset not in halves]
    _in_time(root, books, decisions)
    _scheduled(root, books, decisions, cancels, published, finished)
    _checks(root, books, decisions, born, timeout, interval, check_max)
    _answers(root, books, finished, check_max)
    _rejections(root, books, finished)
    _unpublished(root, books)
    _batches(root, books, finished)
    return books


def _scheduled(
    root: str,
    books: Books,
    decisions: dict[int, Any],
    cancels: dict[int, Any],
    published: Counter[int],
    finished: bool,
) -> None:
    """A delayed message is published by the first batch at or after its time, once, unless it was cancelled before."""
    due = {offset: row["deliver_at"] for offset, row in decisions.items() if row["deliver_at"] is not None}
    wanted = {
        offset: row["decided_at"] + delay_ms * _MS
        for offset, row in decisions.items()
        if (delay_ms := fate(offset).delay_ms) is not None and row["state"] == COMMIT
    }
    if due != wanted:
        books.faults.append(f"scheduled for times that are not their own: {dict(due.items() ^ wanted.items())}")
    delivered = _delivered(root, books, due)
    for topic in TOPICS:
        for row in rows(root, f"topics/{topic}", "half_queue_offset", "published_at"):
            offset = row["half_queue_offset"]
            if offset in due and row["published_at"] < due[offset]:
                books.faults.append(f"{offset} is published before its time")
    for offset, row in cancels.items():
        if offset in published or offset in delivered:
            books.faults.append(f"{offset} is cancelled and published")
        if not fate(offset).cancelled or row["decided_at"] <= decisions[offset]["decided_at"]:
            books.faults.append(f"{offset} is cancelled by nobody, or before it was scheduled")
    if finished:
        out = {offset for offset in due if offset in published}
        books.faults += [f"{offset} is published, not delivered" for offset in out - delivered]
        batches = [row["batch_time"] for row in rows(root, "batches", "batch_time") if row["batch_time"] is not None]
        overdue = {offset for offset, at in due.items() if batches and at <= max(batches)}
        books.lost += sorted((overdue - delivered - set(cancels)) | (delivered - set(published)))


def _delivered(root: str, books: Books, due: dict[int, Any]) -> set[int]:
    """The offsets in `deliveries`."""
    found: set[int] = set()
    for row in rows(root, "deliveries", "queue_offset", "deliver_at", "delivered_at"):
        offset = row["queue_offset"]
        if offset in found:
            books.duplicated.append(offset)
        found.add(offset)
        if offset not in due or row["deliver_at"] != due[offset] or row["delivered_at"] < due[offset]:
            books.faults.append(f"{offset} is delivered, and was not scheduled for then")
    return found


def _in_time(root: str, books: Books, decisions: dict[int, Any]) -> None:
    """No discard although an answer had landed: while the application is down, checks that nobody got do count."""
    for row in rows(root, "op", "queue_offset", "producer_group", "state", "store_timestamp"):
        end = decisions.get(row["queue_offset"])
        own = end is not None and end["state"] == DISCARD and row["producer_group"] == GROUP
        own = own and row["state"] not in (_COUNTED, CANCEL)
        if own and end is not None and row["store_timestamp"] < end["decided_at"] - _PLANNING:
            books.faults.append(f"{row['queue_offset']} is discarded, and its op had landed")


def _checks(
    root: str,
    books: Books,
    decisions: dict[int, Any],
    born: dict[int, Any],
    timeout: timedelta,
    interval: timedelta,
    check_max: int,
) -> None:
    """P5. Of the last number there may be more than one: it is asked again until it was sent."""
    checks: dict[int, list[dict[str, Any]]] = {}
    for row in rows(root, "check_requests", "queue_offset", "check_times", "requested_at"):
        checks.setdefault(row["queue_offset"], []).append(row)
    books.faults += [f"{offset} is checked, and has no transaction" for offset in checks if fate(offset).committed]
    for offset, found in checks.items():
        found.sort(key=lambda row: (row["check_times"], row["requested_at"]))
        if [row["check_times"] for row in found] != [min(number, check_max) for number in range(1, len(found) + 1)]:
            books.faults.append(f"{offset} has the checks {[row['check_times'] for row in found]}")
        if found[0]["requested_at"] <= born[offset] + timeout:
            books.faults.append(f"{offset} is checked in its immunity")
        if any(other["requested_at"] - one["requested_at"] < interval for one, other in pairwise(found)):
            books.faults.append(f"{offset} is checked again too soon")
        end = decisions.get(offset)
        # The last one counts when it was sent: an op may come before that.
        most = min(len(found), check_max)
        least = most - 1 if most == check_max and end is not None and end["state"] != DISCARD else most
        if end is not None and (
            found[-1]["requested_at"] >= end["decided_at"] or not least <= end["check_times"] <= most
        ):
            books.faults.append(f"{offset} is checked after its decision, or its checks are miscounted")
        if end is not None and end["state"] == DISCARD and end["decided_at"] - found[-1]["requested_at"] < interval:
            books.faults.append(f"{offset} is discarded too soon after its last check")


def _unpublished(root: str, books: Books) -> None:
    """A message has one row in `unpublished` (which stays when it is published)."""
    waiting = Counter(row["half_queue_offset"] for row in rows(root, "unpublished", "half_queue_offset"))
    books.duplicated += [offset for offset, times in waiting.items() if times > 1]


def _answers(root: str, books: Books, finished: bool, check_max: int) -> None:
    """Each check is answered once, and an answer that decides is one op, the same; so is that the last one was sent."""
    answered = rows(root, "check_answers", "queue_offset", "check_times", "outcome")
    once = (row for row in answered if row["check_times"] < check_max)
    twice = [key for key, n in Counter((r["queue_offset"], r["check_times"]) for r in once).items() if n > 1]
    books.faults += [f"{offset} has check {times} answered twice" for offset, times in twice]
    said = Counter((r["queue_offset"], r["outcome"]) for r in answered if r["outcome"] in ("COMMIT", "ROLLBACK"))
    said += Counter(
        (row["queue_offset"], _COUNTED)
        for row in answered
        if row["check_times"] >= check_max and row["outcome"] not in ("COMMIT", "ROLLBACK", "SKIPPED")
    )
    columns = ("queue_offset", "state", "source", "producer_group")
    ops = Counter(
        (row["queue_offset"], row["state"])
        for row in rows(root, "op", *columns)
        if row["source"] == "check" and row["producer_group"] == GROUP
    )
    requests = rows(root, "check_requests", "queue_offset", "check_times")
    last = Counter(row["queue_offset"] for row in requests if row["check_times"] >= check_max)
    # The last check may be requested again before its answer's op is read: a recorded answer is sent to `op` again.
    excess = {key: n for key, n in (ops - said).items() if n > max(0, last[key[0]] - 1)}
    if excess or (finished and said - ops):
        books.faults.append(f"answers and ops of checks differ: {sorted([*excess, *(said - ops)])[:5]}")


def _rejections(root: str, books: Books, finished: bool) -> None:
    """Each op of another group is rejected, once, and each CANCEL that found nothing scheduled; nothing else is."""
    rejected = Counter(row["raw"] for row in rows(root, "rejected", "raw"))
    books.faults += [f"rejected {times} times: {raw}" for raw, times in rejected.items() if times > 1]
    ops = rows(root, "op", "queue_offset", "producer_group", "state")
    foreign = sum(row["producer_group"] != GROUP or row["state"] == CANCEL for row in ops) - len(cancelled(root))
    if len(rejected) > foreign or (finished and len(rejected) < foreign):
        books.faults.append(f"{len(rejected)} ops are rejected, of {foreign}")


def _batches(root: str, books: Books, finished: bool) -> None:
    """Each batch that has written is concluded, once."""
    found = Counter((row["application"], row["batch_id"]) for row in rows(root, "batches", "application", "batch_id"))
    books.faults += [f"batch {batch} is concluded {times} times" for (_, batch), times in found.items() if times > 1]
    concluded = {(row["batch_id"], row["batch_time"]) for row in rows(root, "batches", "batch_id", "batch_time")}
    for row in rows(root, "batches", "batch_id", "checks", "table_versions"):
        if row["checks"] and "check_requests" not in dict(row["table_versions"]):
            books.faults.append(f"batch {row['batch_id']} is concluded before its checks are written")
    for table, column in (
        ("decisions", "decided_at"),
        ("deliveries", "delivered_at"),
        ("check_requests", "requested_at"),
    ):
        written = {(row["batch_id"], row[column]) for row in rows(root, table, "batch_id", column)}
        if finished and written - concluded:
            books.faults.append(
                f"{table} has rows of batches that are not concluded: {sorted(written - concluded)[:3]}"
            )
