"""What batches are decided with: kept beside the checkpoint before they begin, so that a begun batch is finished by it.

A batch is a function of offsets, state and time, which Spark keeps, and of the settings and the release that decide,
which it does not. Run again after a crash with others, a batch would decide otherwise than the tables that it has
already committed say. So the folder ``rules`` of the checkpoint has a file for each change, named like Spark's logs by
the first batch that it holds for: batch N is decided with the newest file whose number is not greater than N.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from checkback import __version__
from checkback.errors import StateError
from checkback.reconcile.group_hash import GROUP_HASH, GroupHash
from checkback.reconcile.ownership import NAME, committed
from checkback.reconcile.segment import DECISION_VERSION, Rules
from checkback.storage import filesystem
from checkback.storage.checkpoint import last_done, numbers

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import SparkSession

    from checkback.settings import Settings
    from checkback.storage.checkpoint import Checkpoint
    from checkback.storage.tables import Tables

#: in the folder of the checkpoint
FOLDER = "rules"


@dataclass(frozen=True)
class BatchRules:
    """All that decides a batch besides its offsets, the state and its time.

    ``max_checks``: checks and discards of one partition, None = all that are due. ``release``: of Checkback;
    ``decision_version``: of `segment.decide`. ``group_hash``: that of the state, which a checkpoint keeps until
    `rebuild`; the release before this field knew XXHASH64 alone.
    """

    rules: Rules
    max_checks: int | None = None
    release: str = __version__
    decision_version: int = DECISION_VERSION
    group_hash: GroupHash = GroupHash.XXHASH64

    def decides_like(self, other: BatchRules) -> bool:
        """Does a batch come out the same with either? Releases may differ and decide alike."""
        return self == replace(other, release=self.release)


def batch_rules(settings: Settings, connect: bool = False, group_hash: GroupHash = GROUP_HASH) -> BatchRules:
    """What the settings decide batches with. ``connect``: on Spark Connect nobody here is told what still waits.

    ``group_hash``: of the checkpoint, see `group_hash_of`.
    """
    most = max(1, settings.reconcile.max_checks // settings.reconcile.partitions)
    return BatchRules(rules_of(settings), None if connect else most, group_hash=group_hash)


def group_hash_of(spark: SparkSession, place: str, begun: int | None) -> GroupHash:
    """By what the checkpoint in ``place`` tells groups apart. ``begun``: its newest batch; None = none has begun.

    Taken for another than it is, its state refuses to be read (`state_codec`). Raises StateError when nothing that is
    written down there can be read, StorageError.
    """
    if begun is None:
        return GROUP_HASH
    kept = sorted((number for number in numbers(spark, f"{place}/{FOLDER}") if number <= begun), reverse=True)
    for number in kept:
        if (found := _read(spark, place, number)) is not None:
            return found.group_hash
    if kept:
        raise StateError("what batches are decided with cannot be read", f"{place}/{FOLDER}", "run `checkback rebuild`")
    return GroupHash.XXHASH64


def rules_of(settings: Settings) -> Rules:
    """The protocol's settings in milliseconds."""

    def ms(duration: timedelta) -> int:
        return round(duration.total_seconds() * 1000)

    transaction = settings.transaction
    return Rules(
        timeout=ms(transaction.timeout),
        check_interval=ms(transaction.check_interval),
        check_max=transaction.check_max,
        reserved=ms(transaction.reserved),
        check_jitter=ms(transaction.check_jitter),
        count_undelivered=settings.check.count_undelivered,
    )


def begun_with(spark: SparkSession, tables: Tables, checkpoint: Checkpoint, now: BatchRules) -> BatchRules | None:
    """What a batch that has begun, and is not done, must be finished with; None = no such batch, or it is as ``now``.

    What it was begun with may not be known (the release before wrote no rules), or not be known to this release. As
    long as the batch has committed nothing it is then decided with ``now``, from the state before it. Raises
    StateError when it has committed something, StorageError.
    """
    place, newest = tables.checkpoint(NAME), checkpoint.newest
    if newest is None or newest.batch_id <= last_done(spark, place):
        return None
    found = in_force(spark, place, newest.batch_id)
    if found is not None and found.decision_version == DECISION_VERSION:
        return None if found.decides_like(now) else found
    if names := committed(spark, tables, checkpoint.query_id, newest.batch_id):
        who = "a release that did not keep its settings" if found is None else f"Checkback {found.release}"
        raise StateError(
            f"batch {newest.batch_id} was begun by {who}, which decides otherwise, and has written {names[0]}",
            place,
            "let that release finish it (`checkback reconcile --available-now`), or run `checkback rebuild`",
        )
    forget_state(spark, place, newest.batch_id)
    filesystem.write(spark, _file(place, newest.batch_id), _text(now))
    return None


def keep(spark: SparkSession, place: str, batch_id: int, rules: BatchRules) -> None:
    """Write down what the batches from this one on, which has not begun, are decided with. Raises StorageError.

    What was kept for batches after it holds no more: one that was to come before them has not begun, after all.
    """
    later = [number for number in numbers(spark, f"{place}/{FOLDER}") if number > batch_id]
    for number in later:
        filesystem.delete_file(spark, _file(place, number))
    if later or in_force(spark, place, batch_id) != rules:
        filesystem.write(spark, _file(place, batch_id), _text(rules))


def in_force(spark: SparkSession | None, place: str, batch_id: int) -> BatchRules | None:
    """What the checkpoint in ``place`` says that a batch is decided with; None = nothing that this release can read.

    Raises StorageError when the checkpoint cannot be read.
    """
    first = max((number for number in numbers(spark, f"{place}/{FOLDER}") if number <= batch_id), default=None)
    return None if first is None else _read(spark, place, first)


def forget_state(spark: SparkSession, place: str, batch_id: int) -> None:
    """Delete the state that a broken off try of a batch has written, so that the next try's is the one that counts.

    Left alone, the first try's may: in a local folder Spark keeps a changelog that is there (its rename does not
    replace it, FileSystemBasedCheckpointFileManager.renameTempFile), and everywhere it loads a snapshot of the version
    rather than a changelog (RocksDBFileManager.getLatestSnapshotVersion). Where both tries decide alike, it makes no
    difference. Raises StorageError.
    """
    # State version N + 1 is the one after batch N; an operator, then a partition, is a folder. Hadoop keeps a
    # checksum beside each file of a local folder.
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
