"""`checkback tx resolve`, `tx cancel` and `tx resume`: operator actions."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from checkback.commands.options import Change, Since, command, tx
from checkback.commands.printing import Done, Plan, change, print_objects, print_table
from checkback.errors import CheckbackError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checkback.operate.operations import OperatorSignature
    from checkback.operate.operator_tables import OperatorTables
    from checkback.operate.request import Request
    from checkback.operate.resume_all import Discarded, RequestForAll
    from checkback.operate.transaction import Transaction
    from checkback.settings import Settings

#: what tells the half messages of one id apart
_CHOICE = ("queue/offset", "group", "topic", "born", "age", "checks", "state")

Tx = Annotated[str, typer.Argument(metavar="TX", help="The transaction id.")]
OneGroup = Annotated[str | None, typer.Option("--group", metavar="G", help="The producer group, if several have TX.")]
QueueId = Annotated[int | None, typer.Option(metavar="N", help="Its half queue, if several half messages have TX.")]
QueueOffset = Annotated[int | None, typer.Option(metavar="N", help="Its offset in the half queue.")]


@command(tx)
def resolve(
    options: Change,
    transaction_id: Tx,
    commit: Annotated[bool, typer.Option("--commit", help="It is committed: the message is published.")] = False,
    rollback: Annotated[bool, typer.Option("--rollback", help="It is rolled back: the message is dropped.")] = False,
    group: OneGroup = None,
    queue_id: QueueId = None,
    queue_offset: QueueOffset = None,
) -> None:
    """End a pending transaction by hand, with an op of the operator."""
    from checkback.operate.request import Request, state_of

    state = state_of(commit, rollback)
    _run(options, Request.of(transaction_id, group, queue_id, queue_offset, options.actor, options.reason, state))


@command(tx)
def cancel(
    options: Change,
    transaction_id: Tx,
    group: OneGroup = None,
    queue_id: QueueId = None,
    queue_offset: QueueOffset = None,
) -> None:
    """End a scheduled message before its time: it is kept in `discarded`, and not published."""
    from checkback.operate.operations import CANCEL
    from checkback.operate.request import Request

    _run(options, Request.of(transaction_id, group, queue_id, queue_offset, options.actor, options.reason, CANCEL))


@command(tx)
def resume(
    options: Change,
    transaction_id: Annotated[str | None, typer.Argument(metavar="TX", help="The transaction id.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that were discarded: of --group, --since, if these are given.")
    ] = False,
    group: OneGroup = None,
    since: Since = None,
    queue_id: QueueId = None,
    queue_offset: QueueOffset = None,
) -> None:
    """Make a discarded message, or all, new half messages, whose producers are checked back again."""
    from checkback.operate.request import resume_request
    from checkback.query.versions.as_of import parse_as_of

    begin = parse_as_of(since)
    asked = resume_request(
        transaction_id, everything, group, begin, queue_id, queue_offset, options.actor, options.reason
    )
    _run(options, asked)


def _run(options: Change, request: Request | RequestForAll) -> None:
    from checkback.operate.request import Request, tables_for
    from checkback.operate.transaction import AmbiguousError

    settings = options.settings()
    with tables_for(settings, request) as store:
        if not isinstance(request, Request):
            _run_all(options, store, request, settings.operator.queue)
            return
        try:
            _run_one(options, store, request, settings)
        except AmbiguousError as error:
            _print_choice(options, error.transactions)
            raise


def _run_one(options: Change, store: OperatorTables, request: Request, settings: Settings) -> None:
    from checkback.operate.action import act, look
    from checkback.operate.preview import follows, outcome_json, outcome_text, transaction_card, view_json

    queue = settings.operator.queue
    action = request.action(queue, _now)
    view = look(store, request.asked, queue, action, confirmed=options.yes)

    def done() -> Iterator[Done]:
        outcome = act(store, request.asked, queue, action, None if options.yes else view.transaction)
        yield Done(outcome_text(outcome), outcome_json(outcome, _now()))

    lines = [f"{action.name}: {follows(view, action.name, queue, _now())}"]
    shown = view_json(view, action.name, queue, _now())
    change(options, Plan(("", ""), transaction_card(view.transaction, _now()), lines, shown), done)


def _run_all(options: Change, store: OperatorTables, request: RequestForAll, queue: int) -> None:
    """Raises RefusedError if some could not be resumed."""
    from checkback.operate.operations import RESUME
    from checkback.operate.preview import DISCARDS, consequence_for_all, discards
    from checkback.operate.resume_all import resumable

    chosen = resumable(store, queue, request.group, request.since)
    groups = discards(chosen)
    named = [dict(zip(DISCARDS, row, strict=True)) for row in groups]
    shown = {"done": False, "action": RESUME, "messages": len(chosen), "groups": named}
    titles = ("group", "topic", "reason", "messages", "first", "last")
    plan = Plan(titles, groups, [consequence_for_all(chosen)], shown, nothing=not chosen)
    change(options, plan, lambda: _resumed(store, chosen, queue, request.signed))


def _resumed(store: OperatorTables, chosen: list[Discarded], queue: int, signed: OperatorSignature) -> Iterator[Done]:
    from checkback.operate.permissions import RefusedError
    from checkback.operate.preview import messages, outcome_json
    from checkback.operate.resume_all import resume_some

    resumed, refused = 0, list[CheckbackError]()
    for first in range(0, len(chosen), store.at_once):
        for outcome in resume_some(store, chosen[first : first + store.at_once], queue, signed, _now):
            if isinstance(outcome, CheckbackError):
                refused.append(outcome)
                continue
            resumed += 1
            yield Done("", outcome_json(outcome, _now()))
        if first + store.at_once < len(chosen):
            print(f"{resumed} of {len(chosen)} resumed", file=sys.stderr, flush=True)
    yield Done(f"Resumed {messages(resumed)}. `checkback reconcile` does the rest when it next runs.", None)
    if refused:
        raise RefusedError(f"{messages(len(refused))} not resumed, the first: {refused[0].what}", refused[0].where)


def _print_choice(options: Change, transactions: Sequence[Transaction]) -> None:
    """The half messages of an id, one of which is to be named."""
    from checkback.operate.preview import transaction_card, transaction_json

    if options.for_people:
        cards = [dict(transaction_card(one, _now())) for one in transactions]
        print_table(_CHOICE, [[one[name] for name in _CHOICE] for one in cards])
    else:
        print_objects((transaction_json(one, _now()) for one in transactions), options.output)


def _now() -> datetime:
    return datetime.now(timezone.utc)
