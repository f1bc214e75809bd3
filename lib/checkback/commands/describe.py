"""`checkback tx describe`: the story of a transaction, found by its id, its half message's place, or a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from checkback.commands.answering import answering, print_answer
from checkback.commands.options import Answer, AsOf, OfGroup, command, tx
from checkback.commands.printing import columns, print_line, shown
from checkback.errors import CheckbackError, SettingsError

if TYPE_CHECKING:
    import pyarrow as pa

    from checkback.commands.printing import Row
    from checkback.query.answers import Answers

#: events of a transaction, or transactions, in the table for people; -o json shows all
SHOWN = 500
#: what is shown of transactions when several were found
_FOUND = ("transaction_id", "producer_group", "real_topic", "queue_id", "queue_offset", "keys", "state")
_FIX = "TX is an id: a key is given as --key K, the place of a half message as QUEUE/OFFSET"
_FIX_OF_KEY = "a key is one whole word of a message's keys; a transaction id is given without --key"


def _version(row: Row) -> str:
    version = shown(row["table_version"])
    return version if row["version_exact"] in (True, None) else f"<={version}"


_EVENTS = columns(
    at="at",
    event="event",
    **{"queue/offset": lambda row: "-" if row["queue_id"] is None else f"{row['queue_id']}/{row['queue_offset']}"},
    group="producer_group",
    table="table",
    version=_version,
    batch="batch_id",
    detail="detail",
)
_TRANSACTIONS = columns(
    transaction="transaction_id",
    group="producer_group",
    topic="real_topic",
    **{"queue/offset": lambda row: f"{row['queue_id']}/{row['queue_offset']}"},
    keys="keys",
    decision=lambda row: row["state"] or "PENDING",
)


@command(tx)
def describe(
    options: Answer,
    wanted: Annotated[
        str | None,
        typer.Argument(metavar="TX | QUEUE/OFFSET", help="The transaction id, or its half message's queue and offset."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="K", help="Instead: one of the message's keys.")] = None,
    group: OfGroup = None,
    as_of: AsOf = None,
) -> None:
    """Show all that the tables know of a transaction, in order of time. Exit code 1: nothing."""
    if (wanted is None) == (key is None):
        raise SettingsError("a transaction is named by either", "TX, --key", "give one of the two")
    if key is not None and not key.strip():
        raise SettingsError("is empty", "--key", _FIX_OF_KEY)
    with answering(options.settings(), "tx-describe") as several, several.together() as answers:
        search = _Search(answers, wanted, key, as_of)
        rows = search.found(group)
        if not rows.num_rows:
            raise search.nothing(group)
    if "event" in rows.column_names:
        print_answer(rows, options.output, _EVENTS, SHOWN, "")
        return
    print_answer(rows, options.output, _TRANSACTIONS, SHOWN, "")
    if options.for_people:
        print_line("several transactions: `checkback tx describe TX --group G` shows one")


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
        from checkback.messages.half import parse_place
        from checkback.query.transaction_lineage import UNREADABLE

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
        from checkback.storage.timestamps import iso

        what, fix = f"no table knows the transaction {self.wanted}", _FIX
        if self.key is not None:
            what, fix = f"no half message has the key {self.key}", _FIX_OF_KEY
        if group is not None:
            what = f"{what} of the group {group}"
            owners = {name for name in self.found(None)["producer_group"].to_pylist() if name is not None}
            fix = f"it is of {', '.join(sorted(owners))}" if owners else fix
        since = self.answers.horizon()
        if since is not None:
            what = f"{what}; what ended before {iso(since)} was removed by retention"
        return CheckbackError(what, "", fix)
