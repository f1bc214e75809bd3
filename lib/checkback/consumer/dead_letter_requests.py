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

import pyarrow as pa

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
from checkback.consumer.retry_or_dead_letter import RESUMED
from checkback.errors import FencedError, SettingsError, StorageError
from checkback.operate.operations import Operation, OperatorSignature, operation_row
from checkback.operate.operator_tables import FileStore
from checkback.operate.permissions import RefusedError
from checkback.operate.transaction import Place
from checkback.storage.log.delta_log import AlteredError, DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.timestamps import iso, time_of
from checkback.storage.valid_texts import CONSUMER_GROUP, CONSUMER_GROUP_END

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from checkback.consumer.group.group_state import Death, GroupState
    from checkback.consumer.reconsume import Buried
    from checkback.storage.tables import Tables


ACTION = "RESUME_DEAD_LETTER"
_TABLE = "operations"
_TRIES = 50


class ResumptionLedger:
    """The ledger of one group, to be written. Not thread-safe."""

    def __init__(self, tables: Tables, group: str) -> None:
        """Create the table if it does not exist. Raises StorageError, also if rows cannot be appended."""
        self._tables = tables
        self._group = group
        place = tables.location(_TABLE)
        self._log = DeltaLog.created(_TABLE, place, tables.sync)
        if not self._log.appendable():
            what = "somebody has clustered, partitioned or altered the table"
            raise AlteredError(what, place, "undo it, then run again")

    def recorded(self, deaths: Collection[Death]) -> set[Death]:
        """Those of the deaths that it has. Raises StorageError."""
        return _recorded(self._log, self._group, deaths)

    def next_due(self, now: int) -> int:
        """The time (ms) of retries: now, or after all that it has said before, by whatever machine's clock.

        `SqlPositions` knows by it which retries it has taken over: who asks for it after reading the group's state, and
        writes on condition of that, has a later one than all retries in that state and before. Raises StorageError.
        """
        app = f"operator/{ACTION}/{self._group}"
        for _ in range(_TRIES):
            last = self._log.versions([app])[app]
            due = now if last is None else max(now, last + 1)
            with suppress(FencedError):
                self._log.commit_after([], {app: last}, {app: due})
                return due
        raise self._outrun()

    def record(
        self, signed: OperatorSignature, resumed: Sequence[Judged], now: int, earlier: Collection[Death]
    ) -> None:
        """Append a row for each that has none, in one commit. ``now``: ms. Raises StorageError.

        ``earlier``: deaths that a command before has resumed, which a crash cut short: they have a row of their own.
        """
        for _ in range(_TRIES):
            with suppress(FencedError):
                self._append(signed, resumed, now, frozenset(earlier))
                return
        raise self._outrun()

    def _append(
        self, signed: OperatorSignature, resumed: Sequence[Judged], now: int, earlier: frozenset[Death]
    ) -> None:
        """Raises FencedError if another operator has recorded one of them meanwhile."""
        recorded = self.recorded({death for one in resumed for death in one.deaths})
        each = [(one, deaths) for one in resumed for deaths in (one.deaths & earlier, one.deaths - earlier)]
        new = [(one, deaths) for one, deaths in each if not recorded.issuperset(deaths)]
        if not new:
            return
        with FileWriter(self._tables.root, sync=self._tables.sync) as writer:
            writer.write(_TABLE, pa.concat_tables([self._row(signed, one.buried, now) for one, _ in new]))
            files = writer.close()
        apps = [_app(self._group, death) for _, deaths in new for death in deaths if death not in recorded]
        self._log.commit_after(files, dict.fromkeys(apps), dict.fromkeys(apps, 0))

    def _row(self, signed: OperatorSignature, buried: Buried, now: int) -> pa.Table:
        signed = signed._replace(reason=f"{CONSUMER_GROUP}{self._group}{CONSUMER_GROUP_END}{signed.reason}")
        place = Place(buried.half_queue_id, buried.half_queue_offset)
        names = (buried.transaction_id, buried.producer_group, buried.queue.topic)
        return operation_row(Operation(time_of(now), ACTION, signed, place, *names))

    def _outrun(self) -> FencedError:
        return FencedError("too many concurrent operators", f"consumer group {self._group}", "run it again")


def recorded_deaths(tables: Tables, group: str, deaths: Collection[Death]) -> set[Death]:
    """Those of the deaths that the ledger has. Read only. Raises StorageError."""
    place = tables.location(_TABLE)
    return _recorded(DeltaLog(_TABLE, place, sync=False), group, deaths) if DeltaLog.exists(place) else set()


def _recorded(log: DeltaLog, group: str, deaths: Collection[Death]) -> set[Death]:
    apps = {death: _app(group, death) for death in deaths}
    versions = log.versions(apps.values())
    return {death for death, app in apps.items() if versions[app] is not None}


def _app(group: str, death: Death) -> str:
    place = f"{death.topic}/{death.half_queue_id}/{death.half_queue_offset}"
    return f"operator/{ACTION}/{group}/{place}/{death.dead_at}"


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
        for one, key in zip(buried, keys_of(buried, log.listed), strict=True)
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
    """A dead letter as docs/consumer.md describes it."""
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
