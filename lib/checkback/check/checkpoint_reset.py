"""Resets the checkpoint of the check query if it does not belong to the tables.

It holds nothing that the tables do not: answers are looked up in `check_answers`. But if the tables hold batches with
the same ids, the query's batches would be taken for committed and their answers lost, and missing requests would stop
it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from checkback.check.query import NAME
from checkback.storage.checkpoints.checkpoint import UnreadableCheckpointError
from checkback.storage.checkpoints.checkpoint_fit import fit, misfit
from checkback.storage.crash_recovery import torn_query
from checkback.storage.files import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.storage.tables import Tables

_log = logging.getLogger(__name__)


def renew(spark: SparkSession, tables: Tables) -> str | None:
    """Move the checkpoint aside unless it matches the tables; returns its new path, None = not moved.

    The tables must exist, and no check query may run. Raises FencedError if this process may not write any more,
    StorageError.
    """
    why = _misfit(spark, tables)
    if why is None:
        return None
    place = tables.checkpoint(NAME)
    tables.guard.confirm()
    aside = filesystem.put_aside(spark, place)
    _log.warning("%s: %s: moved to %s, the query starts over", place, why, aside)
    return aside


def _misfit(spark: SparkSession, tables: Tables) -> str | None:
    if (why := torn_query(tables, NAME)) is not None:
        return why
    try:
        found = fit(spark, tables, NAME, ("check_answers", "op"))
    except UnreadableCheckpointError as error:
        return error.what
    other = None if found is None else misfit(found)
    return None if other is None else other.what
