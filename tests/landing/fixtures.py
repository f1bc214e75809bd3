"""A lakehouse of one test, and lines to land into it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkback.gateway.appender import Appender, claim
from checkback.landing.file_query import land
from checkback.storage.tables import Tables
from support.rows import rows_of

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

    from checkback.landing.landing_queries import Landed
    from checkback.settings import Settings


@dataclass
class Lakehouse:
    """A lakehouse of one test: lands into it and looks at its tables."""

    spark: SparkSession
    root: Path
    settings: Settings

    @property
    def tables(self) -> Tables:
        return Tables.of(self.settings.storage)

    def land(self, half: object = None, op: object = None, available_now: bool = True) -> Landed:
        paths = [None if path is None else str(path) for path in (half, op)]
        return land(self.spark, self.settings, paths[0], paths[1], available_now)

    def gateway(self, *queues: int) -> None:
        """A gateway starts, and claims queues."""
        half, op = (Appender(str(self.root), name, queues) for name in ("half", "op"))
        claim(half, op)

    def rows(self, name: str, *columns: str) -> list[Any]:
        return sorted(rows_of(self.root, name, *columns))

    def versions(self) -> dict[str, int]:
        """Number of commits of each table."""
        return {log.parent.name: len([*log.glob("*.json")]) for log in self.root.glob("*/_delta_log")}

    def commits(self, query: str) -> list[int]:
        """Batches of a query that are done."""
        folder = Path(self.tables.checkpoint(query), "commits")
        return sorted(int(file.name) for file in folder.iterdir() if file.name.isdigit())

    def forget_last_batch(self, query: str) -> None:
        """As if the query had been killed after its last writes, before it could note that they are done."""
        last = self.commits(query)[-1]
        folder = Path(self.tables.checkpoint(query), "commits")
        (folder / str(last)).unlink()
        (folder / f".{last}.crc").unlink(missing_ok=True)


def half(queue_offset: int, body: str = "hi", **changes: Any) -> str:
    """A line with a half message of queue 0."""
    message = {
        "queue_id": 0,
        "queue_offset": queue_offset,
        "transaction_id": f"t{queue_offset}",
        "producer_group": "orders",
        "real_topic": "orders_created",
        "real_queue_id": 1,
        "body": base64.b64encode(body.encode()).decode(),
        "born_timestamp": 1_700_000_000_000,
    }
    return json.dumps(message | changes)


def op(queue_offset: int, **changes: Any) -> str:
    """A line with a COMMIT of queue 0."""
    message = {
        "queue_id": 0,
        "queue_offset": queue_offset,
        "transaction_id": f"t{queue_offset}",
        "producer_group": "orders",
        "state": "COMMIT",
        "born_timestamp": 1_700_000_000_000,
    }
    return json.dumps(message | changes)


def killed_before(patch: pytest.MonkeyPatch, table: str) -> None:
    """A `land` dies before it commits to the table."""
    append = Tables.append

    def killing(*given: Any) -> bool:
        if given[2] == table:
            raise ConnectionError("killed")
        return append(*given)

    patch.setattr(Tables, "append", killing)
