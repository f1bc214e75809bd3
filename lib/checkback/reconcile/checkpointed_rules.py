"""The rules that batches are decided with: stored in the checkpoint before a batch begins, so that a replay uses them.

A batch is a function of offsets, state and time, which Spark's checkpoint has, and of settings and release, which it
lacks. Replayed with other ones, a batch would contradict the tables it has already committed to. The checkpoint's
folder ``rules`` therefore has a file per change, named like Spark's logs by the first batch it applies to: batch N is
decided with the file of the greatest number <= N.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from checkback import __version__
from checkback.errors import StateError
from checkback.reconcile.checkpoint_owner import NAME, committed
from checkback.reconcile.segment import DECISION_VERSION, Rules
from checkback.storage.checkpoints.checkpoint import last_done, numbers
from checkback.storage.files import filesystem
from checkback.storage.log.commit_reader import MostFiles
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import SparkSession

    from checkback.settings import Settings
    from checkback.storage.checkpoints.checkpoint import Checkpoint

#: folder in the checkpoint
FOLDER = "rules"


#: bytes of the files of half messages and of ops that a batch reads: some million rows
HALF_BYTES, OP_BYTES = 320 << 20, 16 << 20


@dataclass(frozen=True)
class BatchRules:
    """Everything that determines a batch besides offsets, state and time.

    ``max_checks``, ``max_deliveries``: maximum number of checks and discards, and of scheduled messages published, in a
    partition, None = unlimited. ``most_ops``: files of `op` that a batch reads, None = all. ``release``: Checkback's;
    ``decision_version``: that of `segment.decide`.
    """

    rules: Rules
    max_checks: int | None = None
    max_deliveries: int | None = None
    most_ops: MostFiles | None = None
    release: str = __version__
    decision_version: int = DECISION_VERSION

    def decides_like(self, other: BatchRules) -> bool:
        """True if both decide every batch alike. Releases may differ."""
        return self == replace(other, release=self.release)


def batch_rules(settings: Settings, partitions: int, connect: bool = False) -> BatchRules:
    """The rules of these settings. ``partitions``: see `start_facts`.

    ``connect``: with Spark Connect nothing is deferred, as nothing is reported here.
    """
    limits = settings.reconcile.max_checks, settings.reconcile.max_deliveries
    readable = not connect and Tables.of(settings.storage).readable  # or it cannot be told what a batch has read
    most = MostFiles(settings.reconcile.max_files, OP_BYTES) if readable else None
    checks, deliveries = (None if connect else max(1, limit // partitions) for limit in limits)
    return BatchRules(rules_of(settings), checks, deliveries, most)


def rules_of(settings: Settings) -> Rules:
    """The protocol's settings in milliseconds."""

    def ms(duration: timedelta) -> int:
        return round(duration.total_seconds() * 1000)

    transaction = settings.transaction
    return Rules(
        timeout=ms(transaction.timeout),
        check_interval=ms(transaction.check_interval),
        check_max=transaction.check_max,
        max_age=ms(transaction.max_age),
        check_jitter=ms(transaction.check_jitter),
        count_undelivered=transaction.count_undelivered,
    )


def begun_with(spark: SparkSession, tables: Tables, checkpoint: Checkpoint, now: BatchRules) -> BatchRules | None:
    """The rules with which an uncommitted batch must be replayed; None = no such batch, or they equal ``now``.

    Another release's may decide otherwise or be unreadable here. If no table has a commit of the batch, it is then
    decided with ``now``, from the state before it. Raises StateError if one has, StorageError.
    """
    place, newest = tables.checkpoint(NAME), checkpoint.newest
    if newest is None or newest.batch_id <= last_done(spark, place):
        return None
    found = in_force(spark, place, newest.batch_id)
    if found is not None and found.decision_version == DECISION_VERSION:
        return None if found.decides_like(now) else found
    if names := committed(spark, tables, checkpoint.query_id, newest.batch_id):
        who = "a release whose rules cannot be read" if found is None else f"Checkback {found.release}"
        raise StateError(
            f"batch {newest.batch_id} was begun by {who}, which decides otherwise, and has written {names[0]}",
            place,
            "let that release finish it (`checkback reconcile --available-now`), or run `checkback rebuild`",
        )
    tables.guard.confirm()
    forget_state(spark, place, newest.batch_id)
    filesystem.write(spark, _file(place, newest.batch_id), _text(now))
    return None


def keep(spark: SparkSession, place: str, batch_id: int, rules: BatchRules) -> None:
    """Store the rules from this batch on, which must not have begun. Raises StorageError.

    Rules stored for later batches are deleted: those batches never began.
    """
    later = [number for number in numbers(spark, f"{place}/{FOLDER}") if number > batch_id]
    for number in later:
        filesystem.delete_file(spark, _file(place, number))
    if later or in_force(spark, place, batch_id) != rules:
        filesystem.write(spark, _file(place, batch_id), _text(rules))


def in_force(spark: SparkSession | None, place: str, batch_id: int) -> BatchRules | None:
    """The rules stored for a batch in the checkpoint in ``place``; None = none that this release can read.

    Raises StorageError if the checkpoint cannot be read.
    """
    first = max((number for number in numbers(spark, f"{place}/{FOLDER}") if number <= batch_id), default=None)
    return None if first is None else _read(spark, place, first)


def forget_state(spark: SparkSession, place: str, batch_id: int) -> None:
    """Delete the state written by an interrupted attempt at a batch, so that the replay's state is used.

    Otherwise the first attempt's may be: in a local folder Spark keeps an existing changelog (the rename does not
    replace it, FileSystemBasedCheckpointFileManager.renameTempFile), and everywhere it prefers a snapshot of the
    version to a changelog (RocksDBFileManager.getLatestSnapshotVersion). If both attempts decide alike, this makes no
    difference. Raises StorageError.
    """
    # State version N + 1 is the one after batch N, in folders by operator and partition. Hadoop writes a checksum file
    # next to each local file.
    states = [f"{batch_id + 1}.{kind}" for kind in ("changelog", "zip")]
    mine = [*states, *(f".{name}.crc" for name in states)]
    for operator in filesystem.names(spark, f"{place}/state"):
        if operator.isdecimal():
            for partition in filesystem.names(spark, f"{place}/state/{operator}"):
                if partition.isdecimal():
                    for name in mine:
                        filesystem.delete_file(spark, f"{place}/state/{operator}/{partition}/{name}")


_ADAPTER = TypeAdapter(BatchRules)


def _read(spark: SparkSession | None, place: str, number: int) -> BatchRules | None:
    try:
        return _ADAPTER.validate_json(filesystem.text(spark, _file(place, number)))
    except ValidationError:
        return None


def _file(place: str, batch_id: int) -> str:
    return f"{place}/{FOLDER}/{batch_id}"


def _text(rules: BatchRules) -> str:
    return _ADAPTER.dump_json(rules).decode() + "\n"
