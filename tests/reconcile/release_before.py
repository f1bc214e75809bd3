"""Writes the tables and the checkpoints of data/release-before with the build that PYTHONPATH names.

python -m reconcile.release_before FOLDER: a release's batch done, with rows unread; and one that it died in.
python -m reconcile.release_before FOLDER delayed: scheduled messages.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkback.application.run import reconcile
from checkback.settings import Settings
from checkback.spark.session import running_session
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables


def settings_of(root: Path) -> Settings:
    """A check of each message at once, the next one in a day."""
    return Settings.model_validate(
        {
            "storage": {"root": str(root)},
            "transaction": {"timeout": "0s", "check_interval": "1d"},
            "reconcile": {"partitions": 2, "segment_size": 16},
        }
    )


def land(root: Path, name: str, *rows: dict[str, Any]) -> None:
    """Append rows of `half` or `op`; what all have in common is added."""
    now = datetime.fromtimestamp(time.time(), timezone.utc)
    common = {"queue_id": 0, "producer_group": "g", "born_timestamp": now, "store_timestamp": now}
    with FileWriter(str(root)) as writer:
        writer.write(name, pa.Table.from_pylist([common | row for row in rows], arrow_schema(name)))
        DeltaLog(name, f"{root}/{name}").commit(writer.close())


def half(root: Path, *offsets: int, **fields: Any) -> None:
    """Half messages for the topic `t`."""
    rows = ({"queue_offset": n, "transaction_id": f"t{n}", "real_topic": "t", "body": b"%d" % n} for n in offsets)
    land(root, "half", *(row | fields for row in rows))


def end(root: Path, state: str, *offsets: int) -> None:
    """Ops."""
    rows = ({"half_offset": n, "transaction_id": f"t{n}", "state": state, "source": "producer"} for n in offsets)
    land(root, "op", *rows)


def write(root: Path, dies: bool) -> None:
    """Decided, checked, early and unread transactions; with ``dies`` a batch with some of its tables written, too."""
    settings = settings_of(root)
    with running_session(settings, "release before", short=True) as spark:
        Tables.of(settings.storage).create(spark, "half", "op")
        half(root, *range(40))
        end(root, "COMMIT", *range(10), *range(40, 45))  # of the last five there are no half messages yet
        end(root, "ROLLBACK", *range(10, 15))
        reconcile(spark, settings, available_now=True)
        half(root, *range(40, 50))
        end(root, "COMMIT", *range(15, 20))
        end(root, "ROLLBACK", *range(20, 23))
        if dies:
            commit, done = Tables.commit, set()

            def dying(self: Tables, spark: Any, name: str, *args: Any) -> None:
                if name == "topics/t":
                    while "decisions" not in done:
                        time.sleep(0.01)
                    os._exit(0)
                commit(self, spark, name, *args)
                done.add(name)

            Tables.commit = dying  # type: ignore[assignment, method-assign]
            reconcile(spark, settings, available_now=True)


def write_delayed(root: Path) -> None:
    """Four messages that are due in some minutes, six in the year 2100, a pending one with a delay."""
    settings = settings_of(root)
    with running_session(settings, "release before", short=True) as spark:
        Tables.of(settings.storage).create(spark, "half", "op")
        soon = datetime.now(timezone.utc) + timedelta(minutes=4)
        half(root, *range(4), deliver_at=soon, committed=True)
        half(root, *range(4, 10), deliver_at=datetime(2100, 1, 1, tzinfo=timezone.utc), committed=True)
        half(root, 10, delay_ms=1)
        reconcile(spark, settings, available_now=True)


if __name__ == "__main__":
    if sys.argv[2:] == ["delayed"]:
        write_delayed(Path(sys.argv[1]) / "delayed")
        sys.exit()
    write(Path(sys.argv[1]) / "done", dies=False)
    write(Path(sys.argv[1]) / "under_way", dies=True)
