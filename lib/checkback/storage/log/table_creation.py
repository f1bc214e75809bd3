"""Tables as they are declared: created, and given the columns that those of the release before lack. By delta-rs."""

from __future__ import annotations

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from checkback.storage.files.object_store import options_of
from checkback.storage.log.compatibility import declared_schema
from checkback.storage.log.delta_errors import DELTA_ERRORS, storage_error
from checkback.storage.log.optimistic_transaction import HOOKS, update
from checkback.storage.log.torn_commits import ACTIONS
from checkback.storage.schemas import added_columns, properties_of

#: attempts at adding columns while others commit
_ATTEMPTS = 100


def create_table(name: str, place: str) -> None:
    """Create the table, unless there is one. Raises one of DELTA_ERRORS; another process may have been faster."""
    DeltaTable.create(
        place,
        declared_schema(name),
        mode="ignore",
        configuration=properties_of(name),
        storage_options=options_of(place) or None,
        # Retried, it becomes a later version beside another process's creation: the table with another id.
        commit_properties=CommitProperties(max_commit_retries=0),
    )


def add_columns(table: DeltaTable, name: str, place: str) -> bool:
    """Add the columns that a table of the release before lacks: all are nullable. Other commits may come between.

    False: it lacks none. Raises StorageError.
    """
    declared = {field.name: field for field in declared_schema(name).fields}
    for attempt in range(_ATTEMPTS):
        there = {field.name for field in table.schema().fields}
        lacking = [declared[column] for column in sorted(added_columns(name) - there)]
        if not lacking:
            return attempt > 0
        try:
            table.alter.add_columns(
                lacking,
                post_commithook_properties=HOOKS,
                commit_properties=CommitProperties(custom_metadata={ACTIONS: "1"}),  # metaData
            )
        except CommitFailedError:  # another commit came first: perhaps this one
            update(table, place)
        except DELTA_ERRORS as error:
            what = f"the columns {', '.join(field.name for field in lacking)} cannot be added"
            raise storage_error(what, place, error) from error
    return True
