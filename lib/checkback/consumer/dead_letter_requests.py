"""Dead letters consumed again, as `group reconsume` asks for: retries in the group's state, and rows of `operations`.

The group's state is written first, in one commit the retries and which deaths they are for; then the ledger, which must
not record what was not done; then the state forgets the deaths. After a crash in between they are there still: nobody
resumes them again, and the same command of the same actor completes the ledger.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkback.consumer.batch_log import BatchLog
from checkback.consumer.dead_letters import TABLE
from checkback.consumer.group.group_reader import chosen_groups, no_such_group, read_group
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.reconsume import (
    AGAIN,
    COLUMNS,
    Judged,
    dead_letters_of,
    deaths_in,
    judge,
    keys_of,
    with_retries,
    without_recorded,
)
from checkback.consumer.resumption_ledger import ACTION, ResumptionLedger, recorded_deaths
from checkback.consumer.retry import RESUMED
from checkback.errors import SettingsError, StorageError
from checkback.operate.operations import OperatorSignature
from checkback.operate.operator_tables import FileStore
from checkback.operate.permissions import RefusedError
from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from checkback.consumer.group.group_state import Death, GroupState
    from checkback.storage.tables import Tables

#: dead letters that one command resumes: each commit of the group has all retries
MOST = 10_000
#: columns of the table of dead letters
SHOWN = ("topic", "queue", "half", "transaction", "keys", "retries", "given up", "reason", "is")


@dataclass(frozen=True)
class Request:
    """The options of the command. ``topic``: None = all; ``transaction_ids``: none = all dead letters."""

    group: str
    topic: str | None
    transaction_ids: tuple[str, ...]
    signed: OperatorSignature

    @classmethod
    def of(
        cls,
        group: str,
        topic: str | None,
        transaction_ids: Sequence[str],
        everything: bool,
        actor: str,
        reason: str,
    ) -> Request:
        """Validate the options. Raises SettingsError."""
        if bool(transaction_ids) == everything:
            raise SettingsError("say which dead letters", "--transaction-id, --all", "give one of the two")
        return cls(group, topic, tuple(dict.fromkeys(transaction_ids)), OperatorSignature.of(actor, reason))

    @property
    def resumed_by(self) -> str:
        """The reason of the retries."""
        return f"{RESUMED}{self.signed.actor}"


def chosen_of(request: Request, judged: Sequence[Judged]) -> list[Judged]:
    """Those that are to be consumed again. Raises RefusedError if none of those with the ids asked for can be."""
    chosen = [one for one in judged if one.fate == AGAIN]
    if request.transaction_ids and not chosen:
        fates = ", ".join(sorted({one.fate for one in judged}))
        where = f"--transaction-id {', '.join(request.transaction_ids[:3])}"
        raise RefusedError(f"is {fates}", where, f"see `checkback group describe {request.group}`")
    return chosen


def look(tables: Tables, request: Request) -> list[Judged]:
    """The dead letters asked for, and what becomes of each. Read only.

    Raises SettingsError if there is no such group or dead letter, StorageError.
    """
    return dead_letters(tables, request.group, request.topic, request.transaction_ids, request.resumed_by)


def dead_letters(
    tables: Tables,
    group: str,
    topic: str | None = None,
    transaction_ids: Sequence[str] = (),
    resumed_by: str = "",
) -> list[Judged]:
    """The dead letters of a group, those given up first come first, and what becomes of each. Read only.

    Only those of a topic (None = all), and with these ids (none = all). ``resumed_by``: see `judge`. Raises as `look`.
    """
    chosen_groups(tables, group)
    equal: dict[str, list[str]] = {"consumer_group": [group]}
    if topic is not None:
        equal["topic"] = [topic]
    if transaction_ids:
        equal["transaction_id"] = list(transaction_ids)
    found = FileStore(tables).rows(TABLE, equal, COLUMNS).to_pylist()
    # A row of another writer that names no message cannot be consumed again.
    rows = [row for row in found if None not in (row["topic"], row["half_queue_id"], row["half_queue_offset"])]
    missing = set(transaction_ids) - {row["transaction_id"] for row in rows}
    if missing:
        fix = f"see the table {TABLE}, column transaction_id"
        raise SettingsError("the group has no such dead letter", f"--transaction-id {min(missing)[:80]}", fix)
    log = BatchLog(tables)
    log.refresh()
    state = read_group(tables, group).state
    if state.removed:
        raise no_such_group(tables, group)
    recorded = recorded_deaths(tables, group, deaths_in(rows))
    buried = dead_letters_of(rows, {*recorded, *state.resumed})
    return [
        judge(one, key, state, recorded, resumed_by)
        for one, key in zip(buried, keys_of(buried, log.batches), strict=True)
    ]


def command_of(group: str) -> str:
    """The command that has all dead letters of a group consumed again."""
    return f"checkback group reconsume {shlex.quote(group)} --all --reason TEXT"


def act(tables: Tables, request: Request, chosen: Sequence[Judged], now: int) -> list[Judged]:
    """Have them consumed again, and record it. Returns those that nobody else has resumed meanwhile. ``now``: ms."""
    ledger = ResumptionLedger(tables, request.group)
    group = GroupTable(tables, request.group)
    done: list[Judged] = []
    earlier: Collection[Death] | None = None

    def change(state: GroupState) -> GroupState:
        nonlocal earlier
        # Of the first try: its commit may have been made and answered with an error.
        earlier = set(state.resumed) if earlier is None else earlier
        # On condition that the state stays as it is: what it has forgotten the ledger has, and times grow with states.
        recorded = ledger.recorded({*state.resumed, *(death for one in chosen for death in one.buried.deaths)})
        judged = [judge(one.buried, one.key, state, recorded, request.resumed_by) for one in chosen]
        done[:] = [one for one in judged if one.fate == AGAIN]
        due = ledger.next_due(now) if any(one.deaths.difference(state.resumed) for one in done) else now
        return without_recorded(with_retries(state, done, due, request.resumed_by), recorded)

    group.update(change)
    ledger.record(request.signed, done, now, earlier or ())
    with suppress(StorageError):  # best effort: the next command forgets what the ledger has
        group.update(lambda state: without_recorded(state, ledger.recorded(state.resumed)))
    return done


# What is shown


def follows(request: Request, chosen: Sequence[Judged]) -> str:
    """What the action will do with these dead letters."""
    count = len(chosen)
    if not count:
        return f"the group {request.group} has no dead letters to be consumed again."
    most = f" the first {MOST} of" if count > MOST else ""
    return (
        f"The group {request.group} consumes{most} {_messages(count)} again, each as its first retry, as soon as a "
        f"member runs that subscribes to the topic.{_no_member(chosen)} The rows of `dead_letters` stay."
    )


def _no_member(chosen: Sequence[Judged]) -> str:
    """A sentence about the topics that no member subscribes to, though some are there; may be empty."""
    topics = sorted({one.buried.queue.topic for one in chosen if not one.subscribed})
    return f" No member subscribes to {', '.join(topics)} now: until one does nothing happens." if topics else ""


def outcome(request: Request, done: Sequence[Judged], count: int) -> str:
    """What the action has done; ``count``: the dead letters that were chosen."""
    if count and not done:
        return "Nothing was done: somebody else has resumed them meanwhile."
    more = "" if count <= MOST else f" {count - MOST} are left: run it again once these are consumed."
    return f"To be consumed again by the group {request.group}: {_messages(len(done))}.{_no_member(done)}{more}"


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


def cells(one: Judged) -> tuple[str, ...]:
    """A row of the table of dead letters, in SHOWN."""
    buried = one.buried
    return (
        buried.queue.topic,
        str(buried.queue.queue_id),
        buried.place,
        buried.transaction_id or "-",
        buried.keys or "-",
        str(buried.times),
        iso(buried.dead_at),
        buried.reason or "-",
        one.fate,
    )


def request_json(request: Request, judged: Sequence[Judged], done: bool) -> dict[str, Any]:
    """What is asked for, and the dead letters that it is done with, or would be."""
    return {
        "done": done,
        "action": ACTION,
        "group": request.group,
        "actor": request.signed.actor,
        "reason": request.signed.reason,
        "messages": list(map(as_json, judged)),
    }


def as_json(one: Judged) -> dict[str, Any]:
    """A dead letter as docs/consumer-commands.md describes it."""
    return {
        "topic": one.buried.queue.topic,
        "queue_id": one.buried.queue.queue_id,
        "half_queue_id": one.buried.half_queue_id,
        "half_queue_offset": one.buried.half_queue_offset,
        "transaction_id": one.buried.transaction_id,
        "keys": one.buried.keys,
        "reconsume_times": one.buried.times,
        "dead_at": iso(one.buried.dead_at),
        "error": one.buried.reason,
        "is": one.fate,
    }
