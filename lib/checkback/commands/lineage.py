"""`checkback lineage`: the story of a transaction, found by its id, its half message's place, or a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checkback.commands.answering import answering, print_answer
from checkback.commands.options import (
    AsOf,
    Config,
    Csv,
    Debug,
    Group,
    Json,
    Overrides,
    app,
    prepared_for_tables,
)
from checkback.commands.printing import console, print_line, shown, table_of
from checkback.errors import CheckbackError, SettingsError

if TYPE_CHECKING:
    import pyarrow as pa

    from checkback.inspect.answers import Answers

#: events of a transaction, or transactions, in the table for people; --json shows all
SHOWN = 500
#: what is shown of transactions when several were found
_FOUND = ("transaction_id", "producer_group", "real_topic", "queue_id", "queue_offset", "keys", "state")
_FIX = "TX is an id: a key is given as --key K, the place of a half message as QUEUE/OFFSET"
_FIX_OF_KEY = "a key is one whole word of a message's keys; a transaction id is given without --key"

Wanted = Annotated[
    str | None,
    typer.Argument(metavar="TX | QUEUE/OFFSET", help="The transaction id, or its half message's queue and offset."),
]
Key = Annotated[str | None, typer.Option("--key", metavar="K", help="Instead: one of the message's keys.")]


@app.command()
def lineage(
    wanted: Wanted = None,
    key: Key = None,
    group: Group = None,
    as_of: AsOf = None,
    as_json: Json = False,
    as_csv: Csv = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show all that the tables know of a transaction, in the order of time; the exit code is 1 if that is nothing."""
    if (wanted is None) == (key is None):
        raise SettingsError("a transaction is named by either", "TX, --key", "give one of the two")
    if key is not None and not key.strip():
        raise SettingsError("is empty", "--key", _FIX_OF_KEY)
    settings = prepared_for_tables(config, overrides, debug)
    with answering(settings, "lineage") as several, several.together() as answers:
        search = _Search(answers, wanted, key, as_of)
        rows = search.found(group)
        if not rows.num_rows:
            raise search.nothing(group)
    if "event" in rows.column_names:
        print_answer(rows, as_json, as_csv, SHOWN, _print_events, "")
        return
    print_answer(rows, as_json, as_csv, SHOWN, _print_transactions, "")
    if not as_json and not as_csv:
        print_line("several transactions: `checkback lineage TX --group G` shows one")


@dataclass(frozen=True)
class _Search:
    """What is looked for, and where."""

    answers: Answers
    wanted: str | None
    key: str | None
    as_of: str | None

    def found(self, group: str | None) -> pa.Table:
        """The events of the only transaction that is meant; the half messages if there are several, or none.

        An id may look like a place: it comes first.
        """
        from checkback.inspect.transaction_lineage import UNREADABLE
        from checkback.messages.half import parse_place

        if self.wanted is not None:
            events = self.answers.lineage(self.wanted, self.as_of, group=group)
            place = parse_place(self.wanted)
            if place is None or any(event != UNREADABLE for event in events["event"].to_pylist()):
                return events
            halves = self.answers.transactions(self.as_of, place=place, group=group, limit=None)
        else:
            halves = self.answers.transactions(self.as_of, key=self.key, group=group, limit=None)
        names = {(row["transaction_id"], row["producer_group"]) for row in halves.select(_FOUND[:2]).to_pylist()}
        if len(names) == 1 and None not in (only := names.pop()):
            return self.answers.lineage(only[0], self.as_of, group=only[1])
        return halves.select(_FOUND)

    def nothing(self, group: str | None) -> CheckbackError:
        """The error that says so."""
        what, fix = f"no table knows the transaction {self.wanted}", _FIX
        if self.key is not None:
            what, fix = f"no half message has the key {self.key}", _FIX_OF_KEY
        if group is not None:
            what = f"{what} of the group {group}"
            owners = {name for name in self.found(None)["producer_group"].to_pylist() if name is not None}
            fix = f"it is of {', '.join(sorted(owners))}" if owners else fix
        return CheckbackError(what, "", fix)


def _print_transactions(rows: list[dict[str, Any]]) -> None:
    table = table_of("transaction", "group", "topic", "queue/offset", "keys", "decision")
    for row in rows:
        table.add_row(
            *(shown(row[name]) for name in ("transaction_id", "producer_group", "real_topic")),
            f"{row['queue_id']}/{row['queue_offset']}",
            shown(row["keys"]),
            row["state"] or "PENDING",
        )
    console().print(table)


def _print_events(rows: list[dict[str, Any]]) -> None:
    table = table_of("at", "event", "queue/offset", "group", "table", "version", "batch", "detail")
    for row in rows:
        version = "-" if row["table_version"] is None else str(row["table_version"])
        place = "-" if row["queue_id"] is None else f"{row['queue_id']}/{row['queue_offset']}"
        table.add_row(
            shown(row["at"]),
            str(row["event"]),
            place,
            shown(row["producer_group"]),
            str(row["table"]),
            version if row["version_exact"] in (True, None) else f"<={version}",
            shown(row["batch_id"]),
            shown(row["detail"]),
        )
    console().print(table)
