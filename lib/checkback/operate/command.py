"""The commands `resolve`, `cancel` and `resume`: show, confirm, perform, report."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import typer

from checkback.errors import CheckbackError, SettingsError, printable
from checkback.messages.limits import INT_MAX, LONG_MAX
from checkback.operate.action import act, look
from checkback.operate.operations import RESUME
from checkback.operate.operator_signature import OperatorSignature
from checkback.operate.preview import (
    DISCARDS,
    consequence_for_all,
    discards,
    follows,
    messages,
    outcome_json,
    outcome_text,
    transaction_card,
    transaction_json,
    view_json,
)
from checkback.operate.resolve import ending
from checkback.operate.resume import resuming
from checkback.operate.resume_all import RequestForAll, resumable, resume_some
from checkback.operate.rules import RefusedError
from checkback.operate.tables import open_tables
from checkback.operate.transaction import AmbiguousError, Asked, Place
from checkback.storage.queue_owners import QueueOwner, log_of_half, refuse_foreign
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checkback.operate.action import Action, View
    from checkback.operate.resume_all import Discarded
    from checkback.operate.tables import OperatorTables
    from checkback.operate.transaction import Transaction
    from checkback.settings import Settings

    #: prints a table: column titles, rows
    Print = Callable[[Sequence[str], Sequence[Sequence[str]]], None]


def state_of(commit: bool, rollback: bool) -> str:
    """COMMIT or ROLLBACK, from the options of `resolve`. Raises SettingsError unless exactly one is given."""
    if commit == rollback:
        raise SettingsError("say how the transaction ends", "--commit, --rollback", "give one of the two")
    return "COMMIT" if commit else "ROLLBACK"


@dataclass(frozen=True)
class Request:
    """The options of a command. ``state``: COMMIT or ROLLBACK to resolve with, or CANCEL; None = resume."""

    asked: Asked
    signed: OperatorSignature
    state: str | None

    @classmethod
    def of(
        cls,
        transaction_id: str,
        group: str | None,
        queue_id: int | None,
        queue_offset: int | None,
        actor: str,
        reason: str,
        state: str | None = None,
    ) -> Request:
        """Validate the options. Raises SettingsError."""
        if (queue_id is None) != (queue_offset is None):
            raise SettingsError("only half of a place", "--queue-id, --queue-offset", "give both")
        place = None if queue_id is None or queue_offset is None else Place(queue_id, queue_offset)
        if place is not None and not (0 <= place.queue_id <= INT_MAX and 0 <= place.queue_offset <= LONG_MAX):
            fix = f"give numbers from 0 to {INT_MAX} and {LONG_MAX}"
            raise SettingsError("is no place", "--queue-id, --queue-offset", fix)
        return cls(Asked(transaction_id, group, place), OperatorSignature.of(actor, reason), state)

    def action(self, queue: int, clock: Callable[[], datetime]) -> Action:
        """What is to be done. ``queue``: that of resumed messages."""
        if self.state is None:
            return resuming(queue, self.signed, clock)
        return ending(self.state, self.signed, clock)


def resume_request(
    transaction_id: str | None,
    everything: bool,
    group: str | None,
    since: datetime | None,
    queue_id: int | None,
    queue_offset: int | None,
    actor: str,
    reason: str,
) -> Request | RequestForAll:
    """What `resume` is asked for: one message by its transaction id, or all. Raises SettingsError."""
    if (transaction_id is None) != everything:
        raise SettingsError("say which discarded messages", "TX, --all", "give one of the two")
    if transaction_id is not None:
        if since is not None:
            raise SettingsError("is for all discarded messages", "--since", "give it with --all, without TX")
        return Request.of(transaction_id, group, queue_id, queue_offset, actor, reason)
    if queue_id is not None or queue_offset is not None:
        raise SettingsError("are of one message", "--queue-id, --queue-offset", "give them with TX, without --all")
    return RequestForAll(group, since, OperatorSignature.of(actor, reason))


def run(settings: Settings, request: Request | RequestForAll, yes: bool, as_json: bool, table: Print) -> None:
    """Resolve, cancel or resume. Without ``yes`` it only shows the action; on a terminal it asks for confirmation.

    Raises SettingsError, RefusedError, StorageError.
    """
    queue = settings.operator.queue
    resumes = isinstance(request, RequestForAll) or request.state is None
    with open_tables(settings) as store:
        for name in ("half", "decisions"):
            if not store.has(name):
                raise SettingsError("there is no such table", name, "run `checkback reconcile` first")
        if resumes:
            refuse_foreign(log_of_half(Tables.of(settings.storage)), [queue], QueueOwner.OPERATOR, "operator.queue")
        if isinstance(request, RequestForAll):
            _run_all(store, request, queue, yes, as_json, table)
            return
        try:
            _run(store, request.asked, queue, request.action(queue, _now), yes, as_json, table)
        except AmbiguousError as error:
            _show_all(error.transactions, as_json, table)
            raise


def _run(
    store: OperatorTables, asked: Asked, queue: int, action: Action, yes: bool, as_json: bool, table: Print
) -> None:
    shown = None
    if not (yes and as_json):
        view = look(store, asked, queue, action, confirmed=yes)
        _show(view, action.name, queue, as_json, table)
        if not yes:
            if not confirmed(as_json):
                return
            shown = view.transaction
    outcome = act(store, asked, queue, action, shown)
    print(json.dumps(outcome_json(outcome, _now())) if as_json else printable(outcome_text(outcome)))


def _run_all(store: OperatorTables, request: RequestForAll, queue: int, yes: bool, as_json: bool, table: Print) -> None:
    """As `_run`; with ``as_json`` a line for each message. Raises RefusedError if some could not be resumed."""
    chosen = resumable(store, queue, request.group, request.since)
    if not (yes and as_json):
        _show_discards(chosen, as_json, table)
        if not chosen or (not yes and not confirmed(as_json)):
            return
    resumed, refused = 0, list[CheckbackError]()
    for first in range(0, len(chosen), store.at_once):
        for outcome in resume_some(store, chosen[first : first + store.at_once], queue, request.signed, _now):
            if isinstance(outcome, CheckbackError):
                refused.append(outcome)
                continue
            resumed += 1
            if as_json:
                print(json.dumps(outcome_json(outcome, _now())))
        if first + store.at_once < len(chosen):
            print(f"{resumed} of {len(chosen)} resumed", file=sys.stderr, flush=True)
    if not as_json:
        print(f"Resumed {messages(resumed)}. `checkback reconcile` does the rest when it next runs.")
    if refused:
        raise RefusedError(f"{messages(len(refused))} not resumed, the first: {refused[0].what}", refused[0].where)


def _show_discards(chosen: Sequence[Discarded], as_json: bool, table: Print) -> None:
    groups = discards(chosen)
    if as_json:
        named = [dict(zip(DISCARDS, row, strict=True)) for row in groups]
        print(json.dumps({"done": False, "action": RESUME, "messages": len(chosen), "groups": named}))
        return
    if chosen:
        table(("group", "topic", "reason", "messages", "first", "last"), [list(map(str, row)) for row in groups])
    print(consequence_for_all(chosen))


def _show(view: View, action: str, queue: int, as_json: bool, table: Print) -> None:
    if as_json:
        print(json.dumps(view_json(view, action, queue, _now())))
        return
    table(("", ""), transaction_card(view.transaction, _now()))
    print(printable(f"{action}: {follows(view, action, queue, _now())}"))


def _show_all(transactions: Sequence[Transaction], as_json: bool, table: Print) -> None:
    if as_json:
        for one in transactions:
            print(json.dumps(transaction_json(one, _now())))
        return
    cards = [dict(transaction_card(one, _now())) for one in transactions]
    names = ("queue/offset", "group", "topic", "born", "age", "checks", "state")
    table(names, [[one[name] for name in names] for one in cards])


def confirmed(as_json: bool) -> bool:
    """Whether the user has confirmed; without a terminal nothing is asked."""
    if not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        try:
            if typer.confirm("Do it?"):
                return True
        except typer.Abort as error:  # Ctrl-C, or Ctrl-D
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            print()
        print("Nothing was done.")
    elif not as_json:
        print("Nothing was done. --yes does it.")
    return False


def _now() -> datetime:
    return datetime.now(timezone.utc)
