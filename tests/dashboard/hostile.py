"""Tables with what a hostile producer may send: hostile names, a megabyte of properties, many pending messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.gateway.appender import Appender, half_rows, op_rows
from checkback.gateway.health import now_ms
from checkback.messages.half import Half
from checkback.messages.op import Op
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import SCHEMAS
from support.query_times import append
from support.stories import Transaction

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "t" * 32
SCRIPT = "<script>alert(1)</script>"
HOSTILE = (SCRIPT, "\u202egnp.exe", "a\x1b[31mb", "'\"><img src=x onerror=alert(1)>", "{{ 7 * 7 }}", "x" * 1024)
PENDING = 120
PAGES = (
    *("/", "/pending", "/pending?page=1", "/scheduled", "/consumers", "/transactions", "/groups/orders"),
    *("/unpublished", "/discarded", "/decisions?since=2026-01-01T00:00", "/audit", "/audit?run=1"),
    *(f"/transactions/0/{offset}" for offset in range(len(HOSTILE) + 1)),
    "/transactions?key=key",
    "/transactions?topic=payments",
    "/pending?group=orders&topic=payments&why=its&older_than=1s",
    "/?as_of=1m ago",
)


def message(name: str, **fields: Any) -> Half:
    """A half message that was born a minute ago."""
    half = Half(0, 0, name, "orders", "payments", 0, None, None, {}, b"secret body", now_ms() - 60_000, None)
    return half._replace(**fields)


def build(root: Path) -> None:
    """Write the tables into a folder."""
    for name in SCHEMAS:
        DeltaLog.create(name, f"{root}/{name}", sync=False)
    half = Appender(str(root), "half", [0], sync=False)
    halves = [message(name, tags=name, keys=f"{name} key", properties={name: name}) for name in HOSTILE]
    halves.append(message("large", properties={f"p{number}": "v" * 1000 for number in range(1000)}))
    halves += [message(f"t-{number}") for number in range(PENDING)]
    half.append(half_rows(halves, 0, 0, now_ms()))
    waiting = [
        Transaction(9, number).unpublished(name, transaction_id=name, producer_group=name, reason=name)[1]
        for number, name in enumerate(HOSTILE)
    ]
    append(root, "unpublished", waiting)
    op = Appender(str(root), "op", [0], sync=False)
    op.append(op_rows([Op(0, 0, SCRIPT, "orders", "COMMIT", 1)], [SCRIPT], now_ms()))
