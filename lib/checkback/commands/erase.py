"""`checkback erase`."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from checkback.commands.options import OBJECTS, Change, app, command
from checkback.commands.printing import Done, Plan, change
from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.maintain.erasure import Erasable, Erasure
    from checkback.maintain.erasure_selection import Selection
    from checkback.operate.operations import OperatorSignature
    from checkback.settings import Settings


@command(app, panel=OBJECTS)
def erase(
    options: Change,
    key: Annotated[str | None, typer.Option("--key", metavar="K", help="Messages with this key.")] = None,
    transaction: Annotated[
        str | None, typer.Option("--transaction", metavar="TX", help="Messages of this transaction id.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="G", help="Only this producer group's.")] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL92", help="Messages of --group, as \"properties.customer = '17'\"."),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End those that are pending (ROLLBACK) or scheduled (CANCEL) first.")
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Remove the files before from the disk now, and time travel with them.")
    ] = False,
) -> None:
    """Empty messages of body, keys, tags and properties in all tables: their rows stay, with ids and times."""
    from checkback.maintain.erasure_selection import Selection
    from checkback.operate.operations import OperatorSignature

    signed = OperatorSignature.of(options.actor, options.reason)
    selection = Selection.of(key, transaction, group, where)
    settings = options.settings()
    with _opened(settings, selection, now) as erasure:
        _erase(options, settings, erasure, signed, cancel, now)


@contextmanager
def _opened(settings: Settings, selection: Selection, now: bool) -> Iterator[Erasure]:
    from checkback.maintain.erasure import Erasure
    from checkback.storage.tables import Tables

    tables = Tables.of(settings.storage)
    if tables.by_files:
        yield Erasure(tables, selection)
        return
    if now:
        what = "only Spark writes the tables, and VACUUM without a retention would break those who read them"
        raise SettingsError(
            what, "--now", "leave it out: `checkback maintain` removes the files after maintain.retention"
        )
    from checkback.maintain.sql_erasure import SqlErasure
    from checkback.spark.session import running_session

    with running_session(settings, "checkback-erase") as spark:
        yield SqlErasure(tables, selection, spark)


def _erase(
    options: Change, settings: Settings, erasure: Erasure, signed: OperatorSignature, cancel: bool, now: bool
) -> None:
    found = erasure.find()
    if found.owed and not cancel:
        raise found.refusal()
    shown = {"done": False, "action": "ERASE", "messages": found.messages.num_rows, "rows": found.rows}
    nothing = not found.rows and not now
    plan = Plan(("table", "rows"), list(found.rows.items()), list(_lines(found, now, nothing)), shown, nothing)
    change(options, plan, lambda: _erased(settings, erasure, signed, cancel, now))


def _lines(found: Erasable, now: bool, nothing: bool) -> Iterator[str]:
    if nothing:
        yield "There is nothing to erase."
        return
    for state, number in sorted(Counter(row["state"] for row in found.owed).items()):
        yield f"{number} {state}: ended first; run this again once `checkback reconcile` has decided."
    if not found.owed:
        yield f"ERASE: {found.messages.num_rows} messages lose body, keys, tags and properties. There is no way back."
        files = "are removed now, and time travel with them" if now else "leave the disk after maintain.retention"
        yield f"The files before {files}."
        behind = "fails" if now else "gets them as they were until then, and fails afterwards"
        yield f"A read_stream of yours that has not come to these messages {behind}: let it catch up first."


def _erased(settings: Settings, erasure: Erasure, signed: OperatorSignature, cancel: bool, now: bool) -> Iterator[Done]:
    from checkback.operate.erased import record
    from checkback.operate.operator_tables import open_tables

    with erasure.lock():
        found = erasure.find()
        if found.owed and cancel:
            yield from _ended(settings, found, signed)
            return
        at = datetime.now(timezone.utc)
        if found.rows and not found.owed:
            with open_tables(settings) as store:
                record(store, found.messages.to_pylist(), signed, at)
        erasure.erase(found, at)
        rows = sum(found.rows.values())
        text = f"Erased {found.messages.num_rows} messages, {rows} rows." if rows else ""
        yield Done(text, {"done": True, "action": "ERASE", "messages": found.messages.num_rows, "rows": found.rows})
        if now:
            kept = erasure.remove_files(round(at.timestamp() * 1000))
            more = (
                [*kept, "`checkback maintain` removes these later."]
                if kept
                else ["The tables' files before are removed."]
            )
            yield Done("\n".join(more), None)


def _ended(settings: Settings, found: Erasable, signed: OperatorSignature) -> Iterator[Done]:
    """Roll back what is pending, cancel what is scheduled."""
    from checkback.operate.action import act
    from checkback.operate.operations import CANCEL
    from checkback.operate.permissions import RefusedError
    from checkback.operate.request import Request, tables_for

    if any(row["state"] == "unpublished" for row in found.owed):
        raise found.refusal()
    states = {"pending": "ROLLBACK", "scheduled": CANCEL}
    requests = [
        Request.of(
            row["transaction_id"],
            row["producer_group"],
            row["queue_id"],
            row["queue_offset"],
            signed.actor,
            signed.reason,
            states[row["state"]],
        )
        for row in found.owed
    ]
    queue, number = settings.operator.queue, 0
    with tables_for(settings, requests[0]) as store:
        for request in requests:
            with suppress(RefusedError):  # an op has landed: it ends without us
                act(store, request.asked, queue, request.action(queue, _now))
                number += 1
    already = len(requests) - number
    text = f"Ended {number}{f'; {already} have an op already' if already else ''}. Erased nothing yet: "
    text += "run this again once `checkback reconcile` has decided."
    yield Done(text, {"done": False, "action": "ERASE", "ended": number})


def _now() -> datetime:
    return datetime.now(timezone.utc)
