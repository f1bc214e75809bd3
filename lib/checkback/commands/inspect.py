"""Read-only views of the tables: `pending`, `scheduled`, `unpublished`, `discarded`, `stuck`, `audit` ..."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

from checkback.commands.answering import answering, none_of, one_form, print_answer, with_keys
from checkback.commands.options import (
    AsOf,
    Config,
    Csv,
    Debug,
    Every,
    Group,
    Json,
    OneTopic,
    Overrides,
    Since,
    SinceEver,
    Why,
    app,
    prepared_for_tables,
)
from checkback.commands.printing import console, print_rows, print_table, shown, table_of
from checkback.messages.durations import parse_duration, span

if TYPE_CHECKING:
    import pyarrow as pa

    from checkback.inspect.audit.run import Report

#: Maximum rows in the table of `pending`; --json shows all.
SHOWN = 50
#: Maximum intervals and groups in the table of `decisions`; --json shows all.
EVENTS = 500
#: what names a message in each table
_MESSAGE = ("queue", "offset", "transaction", "group", "topic", "keys")


@app.command()
def pending(
    as_of: AsOf = None,
    group: Group = None,
    as_json: Json = False,
    as_csv: Csv = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show the transactions that are not decided yet, or were not at a time."""
    settings = prepared_for_tables(config, overrides, debug)
    with answering(settings, "pending") as several, several.together() as answers:
        rows = answers.pending(as_of, group=group).drop(["as_of"])
        rows = rows if as_json or as_csv else with_keys(answers, rows, as_of, SHOWN)
        most = 0 if as_json or as_csv else answers.check_max(as_of)
        nothing = _nothing("pending", group, as_of) + none_of(answers, group, rows)
    print_answer(rows, as_json, as_csv, SHOWN, partial(_pending_table, most), nothing)


def _nothing(what: str, group: str | None, as_of: str | None) -> str:
    whose = "Nothing" if group is None else f"Nothing of the group {group}"
    return f"{whose} is {what}." if as_of is None else f"{whose} was."


def _message(row: dict[str, Any]) -> list[str]:
    """The cells of _MESSAGE."""
    names = ("queue_id", "queue_offset", "transaction_id", "producer_group", "real_topic", "keys")
    return [shown(row[name]) for name in names]


def _last_answer(row: dict[str, Any]) -> str:
    return " ".join(str(row[name]) for name in ("last_outcome", "last_error") if row[name] is not None) or "-"


def _next(row: dict[str, Any], check_max: int) -> str:
    """What happens next; a transaction whose op has landed is not checked any more."""
    if row["op_waiting"] is not None:
        return f"{row['op_waiting']} by the next batch"
    return f"{'discard' if row['check_times'] >= check_max else 'check'} {shown(row['next_check_at'])}"


def _pending_table(check_max: int, rows: list[dict[str, Any]]) -> None:
    table = table_of(*_MESSAGE, "age", "checks", "last answer", "next", "why")
    for row in rows:
        table.add_row(
            *_message(row),
            "-" if row["age_s"] is None else span(row["age_s"]),
            f"{row['check_times']} of {check_max}",
            _last_answer(row),
            _next(row, check_max),
            shown(row["why"]),
        )
    console().print(table)


@app.command()
def scheduled(
    as_of: AsOf = None,
    group: Group = None,
    as_json: Json = False,
    as_csv: Csv = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show the committed messages whose time is yet to come, or was at a time."""
    settings = prepared_for_tables(config, overrides, debug)
    with answering(settings, "scheduled") as several, several.together() as answers:
        rows = answers.scheduled(as_of, group=group).drop(["as_of"])
        rows = rows if as_json or as_csv else with_keys(answers, rows, as_of, SHOWN)
        nothing = _nothing("scheduled", group, as_of) + none_of(answers, group, rows)
    print_answer(rows, as_json, as_csv, SHOWN, _scheduled_table, nothing)


def _scheduled_table(rows: list[dict[str, Any]]) -> None:
    table = table_of(*_MESSAGE, "committed", "by", "deliver at", "due in")
    for row in rows:
        table.add_row(
            *_message(row),
            *(shown(row[name]) for name in ("decided_at", "source", "deliver_at")),
            span(row["due_in_s"]) if row["due_in_s"] >= 0 else f"late {span(-row['due_in_s'])}",
        )
    console().print(table)


@app.command()
def unpublished(
    as_of: AsOf = None,
    group: Group = None,
    topic: OneTopic = None,
    as_json: Json = False,
    as_csv: Csv = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show the committed messages that wait for their topic's table, or did at a time, since when and why."""
    settings = prepared_for_tables(config, overrides, debug)
    with answering(settings, "unpublished") as several, several.together() as answers:
        rows = answers.unpublished(as_of, group=group, topic=topic)
        rows = rows if as_json or as_csv else with_keys(answers, rows, as_of, SHOWN)
        nothing = _nothing("unpublished", group, as_of) + none_of(answers, group, rows)
    print_answer(rows, as_json, as_csv, SHOWN, _unpublished_table, nothing)


def _unpublished_table(rows: list[dict[str, Any]]) -> None:
    from checkback.inspect.unpublished_messages import retry_of

    said = dict.fromkeys(retry for row in rows if (retry := retry_of(row["real_topic"])))
    print_rows(f"Mend the table of the topic, or move it away: it is {retry}." for retry in said)
    table = table_of(*_MESSAGE, "committed", "why")
    for row in rows:
        table.add_row(
            *_message(row),
            *(shown(row[name]) for name in ("unpublished_at", "reason")),
        )
    console().print(table)


@app.command()
def discarded(
    since: SinceEver = None,
    as_of: AsOf = None,
    group: Group = None,
    topic: OneTopic = None,
    reason: Why = None,
    as_json: Json = False,
    as_csv: Csv = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show the messages that were given up or cancelled, the last first, and why; `resume` brings one back."""
    settings = prepared_for_tables(config, overrides, debug)
    with answering(settings, "discarded") as several, several.together() as answers:
        rows = answers.discarded(as_of, since=since, group=group, topic=topic, reason=reason)
        rows = rows if as_json or as_csv else with_keys(answers, rows, as_of, SHOWN)
        nothing = _none_discarded(since, group, topic, reason, as_of) + none_of(answers, group, rows)
    print_answer(rows, as_json, as_csv, SHOWN, partial(_discarded_table, rows), nothing)


def _none_discarded(
    since: str | None, group: str | None, topic: str | None, reason: str | None, as_of: str | None
) -> str:
    if since is None and topic is None and reason is None:
        return _nothing("discarded", group, as_of)
    asked = (("since", since), ("of the group", group), ("for", topic), ("with reason", reason), ("until", as_of))
    return " ".join(["Nothing was discarded", *(f"{name} {value}" for name, value in asked if value is not None)]) + "."


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


def _discarded_table(found: pa.Table, rows: list[dict[str, Any]]) -> None:
    print_rows(_totals(found))
    table = table_of(*_MESSAGE, "discarded", "why", "last answer", "resumed as")
    for row in rows:
        times = row["check_times"]
        after = f"{row['reason']} after {times} check{'' if times == 1 else 's'}"
        why = row["reason"] if row["reason"] == "CANCELLED" else after
        table.add_row(
            *_message(row),
            *(shown(row["discarded_at"]), why, _last_answer(row), shown(row["resumed_as"])),
        )
    console().print(table)


@app.command()
def stuck(
    as_of: AsOf = None,
    as_json: Json = False,
    as_csv: Csv = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show the producer groups that are stuck: their transactions do not end by themselves; since when, and why."""
    settings = prepared_for_tables(config, overrides, debug)
    with answering(settings, "stuck") as answers:
        rows = answers.groups(as_of, stuck=True).drop(["as_of"])
    print_answer(rows, as_json, as_csv, SHOWN, _stuck_table, "No group is stuck." if as_of is None else "No group was.")


def _stuck_table(rows: list[dict[str, Any]]) -> None:
    times = ("silent since", "undecided since", "discard from")
    table = table_of("group", "pending", "overdue", "oldest", "last answer", *times, "endpoints", "why")
    for row in rows:
        said = ("last_answer", "last_answer_at", "last_answer_endpoint")
        table.add_row(
            *(shown(row[name]) for name in ("producer_group", "pending", "overdue")),
            "-" if row["oldest_age_s"] is None else span(row["oldest_age_s"]),
            " ".join(row[name] for name in said if row[name] is not None) or "-",
            *(shown(row[name]) for name in ("silent_since", "undecided_since", "first_discard")),
            " ".join(row["endpoints"]) or "-",
            shown(row["why"]),
        )
    console().print(table)


@app.command()
def decisions(
    since: Since = "1h ago",
    every: Every = "1m",
    as_of: AsOf = None,
    group: Group = None,
    as_json: Json = False,
    as_csv: Csv = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show how many transactions of each group were decided in each interval, and how."""
    settings = prepared_for_tables(config, overrides, debug)
    with answering(settings, "decisions") as answers:
        rows = answers.decisions(as_of, since=since, every=parse_duration(every), group=group)
        nothing = _none_decided(since, as_of, group) + none_of(answers, group, rows)
    print_answer(rows, as_json, as_csv, EVENTS, _decisions_table, nothing)


def _none_decided(since: str, as_of: str | None, group: str | None) -> str:
    whose = "" if group is None else f" of the group {group}"
    return f"Nothing{whose} was decided since {since}{'' if as_of is None else f' until {as_of}'}."


def _decisions_table(rows: list[dict[str, Any]]) -> None:
    from checkback.inspect.status.screen import STATES

    counts: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows:
        counts.setdefault((row["minute"], row["producer_group"]), {})[row["state"]] = row["decisions"]
    table = table_of("from", "group", *STATES)
    for (minute, group), of_state in counts.items():
        table.add_row(minute, shown(group), *(str(of_state.get(state, 0)) for state in STATES))
    console().print(table)


@app.command()
def audit(
    as_json: Json = False,
    as_csv: Csv = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show whether the tables keep every promise; the exit code is 1 when they do not, or a topic cannot be read."""
    one_form(as_json, as_csv)
    settings = prepared_for_tables(config, overrides, debug)
    with answering(settings, "audit") as answers:
        report = answers.audit()
    try:
        _print_audit(report, as_json, as_csv)
    except BrokenPipeError:  # `| head`: the exit code tells all the same
        if report.kept:
            raise
    if not report.kept:
        raise typer.Exit(code=1)


def _print_audit(report: Report, as_json: bool, as_csv: bool) -> None:
    from checkback.inspect.audit import report as reports
    from checkback.inspect.json_lines import csv_table

    if as_json:
        print(json.dumps(reports.as_json(report), indent=2))
    elif as_csv:
        print_rows(csv_table(reports.COLUMNS, reports.table_rows(report)))
    else:
        print_table(reports.COLUMNS, reports.table_rows(report))
        for line in reports.conclusion(report, datetime.now(timezone.utc)):
            console().print(line)
