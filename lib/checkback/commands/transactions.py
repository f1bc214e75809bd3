"""`checkback tx list` and `tx decisions`: the transactions in a state, and how many were decided."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from checkback.commands.answering import answering, nothing, print_answer, tell_horizon, with_keys
from checkback.commands.options import SINCE, Answer, AsOf, OfGroup, OfTopic, Since, command, tx
from checkback.commands.printing import columns, print_lines, shown
from checkback.errors import SettingsError
from checkback.messages.durations import parse_duration, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from checkback.commands.printing import Row

#: rows of the table of a list; -o json shows all
SHOWN = 50
#: intervals and groups in the table of `tx decisions`; -o json shows all
EVENTS = 500


class State(str, Enum):
    """What becomes of a transaction that `tx list` shows."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    UNPUBLISHED = "unpublished"
    DISCARDED = "discarded"


def _next(row: Row) -> str:
    """What happens next; a transaction whose op has landed is not checked any more."""
    if row["op_waiting"] is not None:
        return f"{row['op_waiting']} by the next batch"
    return f"{'discard' if row['check_times'] >= row['check_max'] else 'check'} {shown(row['next_check_at'])}"


def _last_answer(row: Row) -> str:
    return " ".join(str(row[name]) for name in ("last_outcome", "last_error") if row[name] is not None) or "-"


def _discarded_for(row: Row) -> str:
    times = row["check_times"]
    after = f"{row['reason']} after {times} check{'' if times == 1 else 's'}"
    return row["reason"] if row["reason"] == "CANCELLED" else after


#: what names a message in each list
_MESSAGE = columns(
    queue="queue_id",
    offset="queue_offset",
    transaction="transaction_id",
    group="producer_group",
    topic="real_topic",
    keys="keys",
)
#: the columns of each list
COLUMNS = {
    State.PENDING: _MESSAGE
    + columns(
        age=lambda row: "-" if row["age_s"] is None else span(row["age_s"]),
        checks=lambda row: f"{row['check_times']} of {row['check_max']}",
        last_answer=_last_answer,
        next=_next,
        why="why",
    ),
    State.SCHEDULED: _MESSAGE
    + columns(
        committed="decided_at",
        by="source",
        deliver_at="deliver_at",
        due_in=lambda row: span(row["due_in_s"]) if row["due_in_s"] >= 0 else f"late {span(-row['due_in_s'])}",
    ),
    State.UNPUBLISHED: _MESSAGE + columns(committed="unpublished_at", why="reason"),
    State.DISCARDED: _MESSAGE
    + columns(discarded="discarded_at", why=_discarded_for, last_answer=_last_answer, resumed_as="resumed_as"),
}


@command(tx, "list")
def list_(
    options: Answer,
    state: Annotated[State, typer.Option("--state", help="Which transactions.")] = State.PENDING,
    group: OfGroup = None,
    topic: OfTopic = None,
    since: Since = None,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="REASON", help="Of discarded ones: CHECK_MAX, EXPIRED or CANCELLED."),
    ] = None,
    as_of: AsOf = None,
) -> None:
    """List the transactions in a state, now or at a time: since when, and why.

    pending: not decided yet, the oldest first
    scheduled: committed, to be published later, the next first
    unpublished: committed, waiting for their topic's table, the oldest first
    discarded: given up or cancelled, the last first; `checkback tx resume` brings one back
    """
    if state is not State.DISCARDED and not (since is None and reason is None):
        raise SettingsError("are of discarded messages", "--since, --reason", "give --state discarded, too")
    asked = {"since": since, "reason": reason} if state is State.DISCARDED else {}
    settings = options.settings()
    with answering(settings, "tx-list") as several, several.together() as answers:
        rows = getattr(answers, state.value)(as_of, group=group, topic=topic, **asked)
        rows = rows.drop([name for name in ("as_of",) if name in rows.column_names])
        if options.for_people:
            import pyarrow as pa

            rows = with_keys(answers, rows, as_of, SHOWN)
            most = answers.check_max(as_of) if state is State.PENDING else 0
            rows = rows.append_column("check_max", pa.array([most] * rows.num_rows, pa.int32()))
        verb = f"{'is' if as_of is None else 'was'} {state.value}"
        none = "" if rows.num_rows else nothing(answers, "Nothing", verb, as_of, group, for_topic=topic, **asked)
    if options.for_people:
        print_lines(_above(state, rows))
    print_answer(rows, options.output, COLUMNS[state], SHOWN, none)


def _above(state: State, rows: pa.Table) -> Iterator[str]:
    """The lines above the table."""
    if state is State.DISCARDED:
        yield from _totals(rows)
    if state is State.UNPUBLISHED:
        from checkback.query.undelivered_messages import retry_of

        retries = dict.fromkeys(filter(None, map(retry_of, rows.column("real_topic").to_pylist())))
        yield from (f"Mend the table of the topic, or move it away: it is {retry}." for retry in retries)


def _totals(found: pa.Table) -> list[str]:
    """How many were discarded by group and reason: a line for each of the groups with the most."""
    names = zip(found["producer_group"].to_pylist(), found["reason"].to_pylist(), strict=True)
    groups: dict[str, Counter[str]] = {}
    for group, reason in names:
        groups.setdefault(shown(group), Counter())[shown(reason)] += 1
    most = sorted(groups.items(), key=lambda one: (-one[1].total(), one[0]))
    told = (f"{group}: {', '.join(f'{many} {reason}' for reason, many in of.most_common())}" for group, of in most)
    more = len(most) - SHOWN
    return [*islice(told, SHOWN), *([f"and {more} more groups"] if more > 0 else [])]


def _interval(option: typer.CallbackParam, value: str) -> str:
    """The text of an option, which must be a duration above zero. Raises SettingsError."""
    try:
        if parse_duration(value) > timedelta(0):
            return value
    except ValueError:
        pass
    raise SettingsError(f"{value[:60]!r} is no interval", option.opts[0], "write 10s, 5m or 1h")


@command(tx)
def decisions(
    options: Answer,
    since: Annotated[str, SINCE] = "1h ago",
    every: Annotated[
        str,
        typer.Option(
            "--every", callback=_interval, metavar="DURATION", help="The length of an interval, as 10s or 1h."
        ),
    ] = "1m",
    group: OfGroup = None,
    as_of: AsOf = None,
) -> None:
    """Show how many transactions of each group were decided in each interval, and how."""
    from checkback.query.status.screen import STATES

    with answering(options.settings(), "tx-decisions") as answers:
        tell_horizon(answers.horizon(), since)
        rows = answers.decisions(as_of, since=since, every=parse_duration(every), group=group)
        none = "" if rows.num_rows else nothing(answers, "Nothing", "was decided", as_of, group, since=since)
    shape = columns(from_="minute", group="producer_group", **{state: state for state in STATES})
    print_answer(rows, options.output, shape, EVENTS, none, _by_interval)


def _by_interval(rows: Iterable[Row]) -> Iterable[Row]:
    """A row for each interval and group, with the decisions by state."""
    from checkback.query.status.screen import STATES

    found: dict[tuple[str, str], dict[str, object]] = {}
    for row in rows:
        of = found.setdefault((row["minute"], row["producer_group"]), {**row, **dict.fromkeys(STATES, 0)})
        of[row["state"]] = row["decisions"]
    return found.values()
