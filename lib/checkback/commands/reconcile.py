"""`checkback reconcile` and `checkback rebuild`: run the queries, rebuild their checkpoint."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from checkback.commands.options import RUN, AvailableNow, Common, app, command
from checkback.errors import CheckbackError, SettingsError, StorageError
from checkback.spark.session import running_session
from checkback.storage.files.paths import storage_check

if TYPE_CHECKING:
    from checkback.settings import Settings

#: backlog (rows) from which the JVM's optimising compiler pays off
_MANY = 200_000


@command(app, panel=RUN)
def reconcile(
    options: Common,
    available_now: AvailableNow = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait, ready, while another one works on the tables; then take its place.")
    ] = False,
) -> None:
    """Decide transactions, publish what is committed, and check back on the rest."""
    if available_now and standby:
        raise SettingsError("--available-now and --standby exclude each other", fix="give one of them")
    loaded = options.load()
    storage_check(loaded.settings, loaded.origins)
    if standby:
        from checkback.application.standby import stand_by

        with running_session(loaded.settings, "checkback-reconcile") as spark:
            stand_by(spark, loaded.settings)
        return
    if available_now and _nothing_to_do(loaded.settings):
        return
    _refuse_second(loaded.settings)
    from checkback.application.queries import reconcile as run

    short = available_now and _is_small(loaded.settings)
    with running_session(loaded.settings, "checkback-reconcile", short=short) as spark:
        run(spark, loaded.settings, available_now)


def _refuse_second(settings: Settings) -> None:
    from checkback.storage.lock import refuse_if_locked
    from checkback.storage.tables import Tables

    refuse_if_locked(Tables.of(settings.storage))


def _nothing_to_do(settings: Settings) -> bool:
    """True if there is no work: read from files without Spark, under the lock."""
    from checkback.reconcile.start.idle_run import note_run, nothing_to_do
    from checkback.storage.lock import exclusive_lock
    from checkback.storage.tables import Tables

    tables = Tables.of(settings.storage)
    with exclusive_lock(tables):
        if not nothing_to_do(tables, settings, round(time.time() * 1000)):
            return False
        with suppress(StorageError):  # it is for `status` only
            note_run(tables, round(time.time() * 1000))
        return True


def _is_small(settings: Settings) -> bool:
    """True if the backlog is small; false if it is unknown."""
    from checkback.query.status.status import read_status
    from checkback.storage.tables import Tables

    try:
        lag = read_status(settings, datetime.now(timezone.utc)).reconcile.lag
    except CheckbackError:  # the run itself will report it
        return False
    return Tables.of(settings.storage).by_files and sum(unread.rows for unread in lag.values()) < _MANY


@command(app, panel=RUN)
def rebuild(
    options: Common,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Messages that somebody deleted from their tables stay deleted.")
    ] = False,
    publish_again: Annotated[
        bool, typer.Option("--publish-again", help="Write messages that were deleted from their tables again.")
    ] = False,
) -> None:
    """Rebuild reconcile's checkpoint from the tables; the old one is kept beside it."""
    if leave_out and publish_again:
        raise SettingsError("--leave-out and --publish-again exclude each other", fix="give one of them")
    loaded = options.load_for_tables()
    storage_check(loaded.settings, loaded.origins)
    _refuse_second(loaded.settings)
    from checkback.application.rebuild import rebuild as rebuilt_from_tables
    from checkback.reconcile.lost_checkpoint.batch_recovery import Deleted

    deleted = Deleted.LEAVE_OUT if leave_out else Deleted.PUBLISH_AGAIN if publish_again else Deleted.REFUSE
    with running_session(loaded.settings, "checkback-rebuild") as spark:
        rebuilt = rebuilt_from_tables(spark, loaded.settings, lambda line: print(line, flush=True), deleted)
    if rebuilt is None:
        raise CheckbackError("the rebuild was stopped before its end", fix="run it again before `checkback reconcile`")
    for table, rows in rebuilt.finished.items():
        print(f"{table}: {rows} rows added that a batch had left out")
    print(f"rebuilt from {rebuilt.segments} segments; go on with `checkback reconcile`")
    if rebuilt.set_aside is not None:
        print(f"the old checkpoint is {rebuilt.set_aside}")
