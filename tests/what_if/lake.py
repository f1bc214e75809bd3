"""Records as rows of real tables."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from checkback.reconcile.records.segment_records import NOT_STATED, Kind, Reason, Source
from checkback.what_if.records import Answered, Row, State
from support.query_times import append, table

if TYPE_CHECKING:
    from pathlib import Path

    from checkback.reconcile.records.segment_records import Records
    from checkback.what_if.timeline import Timeline

_EPOCH = datetime.fromtimestamp(0, timezone.utc)
_NAMES = dict(zip(Row, ("half", "op", "decisions", "check_requests", "check_answers"), strict=True))


def write(root: Path, timeline: Timeline, segments: dict[tuple[int, int], Records]) -> None:
    """The tables of a history: segments by queue and number."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _NAMES.values()}
    for (queue, _), records in segments.items():
        for record in records:
            name = _NAMES[Row(record["row"])]
            rows[name].append(_row(name, queue, record, timeline))
    for name, found in rows.items():
        table(root, name)
        if found:
            append(root, name, found)
    append(root, "batches", [_batch(timeline, turn) for turn in range(len(timeline))])


def _row(name: str, queue: int, record: Any, timeline: Timeline) -> dict[str, Any]:
    named: dict[str, Any] = {
        "queue_id": queue,
        "queue_offset": int(record["offset"]),
        "transaction_id": None if record["transaction"] == NOT_STATED else f"t{record['transaction']}",
        "producer_group": f"g{record['group']}",
        "real_topic": "payments",
    }
    number = int(record["number"])
    if name in ("half", "op"):
        named |= {"born_timestamp": _ms(record["born"]), "store_timestamp": _ms(record["store"] / 1000)}
    if name == "half":
        delay, immunity = int(record["delay"]), int(record["immunity"])
        assert immunity < 0 or immunity % 1000 == 0
        return named | {
            "check_immunity_s": None if immunity < 0 else immunity // 1000,
            "delay_ms": -delay if delay < 0 else None,
            "deliver_at": _ms(delay) if delay > 0 else None,
            "committed": record["kind"] == Kind.MESSAGE,
        }
    if name == "op":
        remark = f"check {record['check']}" if record["source"] == Source.CHECK else None
        kind = Kind(record["kind"])
        state = "?" if kind is Kind.UNKNOWN else kind.name
        del named["real_topic"]
        return named | {"state": state, "source": Source(record["source"]).name.lower(), "remark": remark}
    if name == "check_answers":
        more = {"outcome": Answered(record["kind"]).name, "delivered": bool(record["source"])}
        return named | more | {"check_times": number, "answered_at": _ms(record["at"]), "batch_id": 0}
    turn = int(record["turn"])
    time, batch = _ms(timeline.times[turn]), {"batch_id": turn}
    if name == "check_requests":
        return named | batch | {"check_times": number, "requested_at": time}
    ended = State(record["kind"])
    reason = Reason(record["reason"]).name if ended is State.DISCARD else None
    more = {"state": ended.name, "source": Source(record["source"]).name.lower(), "reason": reason}
    return named | batch | more | {"check_times": number, "decided_at": time}


def _batch(timeline: Timeline, turn: int) -> dict[str, Any]:
    rules = timeline.rules_at(turn)
    return {
        "application": "query",
        "batch_id": turn,
        "batch_time": _ms(timeline.times[turn]),
        "finished_at": _EPOCH + timedelta(days=1, milliseconds=turn),
        "timeout_ms": rules.timeout,
        "check_interval_ms": rules.check_interval,
        "check_max": rules.check_max,
        "max_age_ms": rules.max_age,
        "check_jitter_ms": rules.check_jitter,
        "count_undelivered": rules.count_undelivered,
        "table_versions": [],
    }


def _ms(ms: float) -> datetime:
    return _EPOCH + timedelta(microseconds=round(ms * 1000))
