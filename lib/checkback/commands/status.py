"""`checkback status`, `checkback outages`: how reconcile and the tables are; when producer groups did not answer."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from checkback.commands.answering import answering, nothing, print_answer, say, tell_horizon
from checkback.commands.options import ANSWERS, Answer, AsOf, OfGroup, Output, Since, app, command
from checkback.commands.printing import columns, console, print_lines, table_of
from checkback.errors import CheckbackError, SettingsError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from checkback.commands.printing import Row
    from checkback.query.status.status import ConsumerFacts, Status
    from checkback.settings import Settings

#: outages in the table for people; -o json shows all
SHOWN = 50


def _until(row: Row) -> str:
    """When it was over; as long as nobody was asked since, that is not known."""
    if row["over_at"] is not None:
        return str(row["over_at"])
    return f"{'goes on (asked' if row['still_pending'] else '- (not asked since'} {row['last_vain_at']})"


COLUMNS = columns(
    group="producer_group",
    from_="began_at",
    until=_until,
    said=lambda row: " ".join(row[name] for name in ("outcome", "said") if row[name] is not None),
    endpoints=lambda row: " ".join(row["endpoints"]) or "-",
    waited="transactions",
    discarded="discarded",
    still_pending="still_pending",
)


@command(app, panel=ANSWERS)
def outages(options: Answer, since: Since = None, group: OfGroup = None, as_of: AsOf = None) -> None:
    """List when producer groups did not answer their checks, or only UNKNOWN, the last first; also what is over."""
    with answering(options.settings(), "outages") as answers:
        tell_horizon(answers.horizon(), since)
        rows = answers.outages(as_of, since=since, group=group)
        none = "" if rows.num_rows else nothing(answers, "No outage", "is known", as_of, group, since=since)
    print_answer(rows, options.output, COLUMNS, SHOWN, none)


#: Refresh interval in seconds.
REFRESH_S = 5.0


@command(app, panel=ANSWERS)
def status(
    options: Answer,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every few seconds, until Ctrl-C.")] = False,
    as_of: AsOf = None,
) -> None:
    """Show on one screen whether reconcile is running, how far it is, and who is stuck and why."""
    if watch and as_of is not None:
        raise SettingsError("--watch and --as-of exclude each other", fix="give one of them")
    settings = options.settings()
    out = console()
    if as_of is not None:
        with answering(settings, "status") as answers:
            _print(out, answers.status(as_of), options.output, watch)
        return
    try:
        if not (options.for_people and out.is_terminal):
            for found in _looks(settings, watch, lambda error: say(str(error))):
                _print(out, found, options.output, watch)
            return
        # Reconcile's own facts are available at once, the tables' a little later, on Spark much later.
        with Live(console=out, auto_refresh=False, screen=watch) as live:
            last: RenderableType = ""

            def show(found: Status) -> None:
                nonlocal last
                last = _screen(found)
                live.update(last, refresh=True)

            def show_failed(error: CheckbackError) -> None:
                live.update(Group(last, Text(printable(str(error)), "red")), refresh=True)

            for found in _looks(settings, watch, show_failed, show):
                show(found)
    except KeyboardInterrupt:
        if not watch:
            raise


def _looks(
    settings: Settings,
    watch: bool,
    failed: Callable[[CheckbackError], None],
    early: Callable[[Status], None] | None = None,
) -> Iterator[Status]:
    """The status, repeatedly with ``watch``.

    ``failed`` receives the error of a look after the first, which does not end the others, as of a store that
    throttles; ``early`` what is known before the tables are read.
    """
    from checkback.query.status.status import read_status

    consumers = _consumers_reader(settings)
    with ThreadPoolExecutor(1) as pool:  # beside the tables: each takes requests that follow one another
        reading = pool.submit(consumers)
        if early is not None:
            early(read_status(settings, datetime.now(timezone.utc)))
        with answering(settings, "status") as answers:
            first = True
            while True:
                try:
                    found = replace(answers.status(), consumers=reading.result())
                except CheckbackError as error:
                    if first:
                        raise
                    failed(error)
                else:
                    yield found
                first = False
                if not watch:
                    return
                time.sleep(REFRESH_S)
                reading = pool.submit(consumers)


def _consumers_reader(settings: Settings) -> Callable[[], tuple[ConsumerFacts, ...] | None]:
    """A function that reads the consumer groups; it returns None if only Spark can read them."""
    from checkback.consumer.group.lag_reader import LagReader
    from checkback.consumer.group.lag_screen import facts_of
    from checkback.storage.tables import Tables

    tables = Tables.of(settings.storage)
    reader = LagReader(tables)

    def read() -> tuple[ConsumerFacts, ...] | None:
        if not tables.readable:
            return None
        now = round(time.time() * 1000)
        return tuple(facts_of(one, now) for one in reader.read(now))

    return read


def _print(out: Console, found: Status, output: Output, watch: bool) -> None:
    from checkback.query.json_lines import csv_of
    from checkback.query.status import screen as status_screen

    if output is Output.CSV:
        print_lines(csv_of(status_screen.as_json(found)))
    elif output is Output.TABLE:
        out.print(_screen(found))
    elif watch:
        print(json.dumps(status_screen.as_json(found)), flush=True)
    else:
        print(json.dumps(status_screen.as_json(found), indent=2))


def _screen(found: Status) -> RenderableType:
    from checkback.query.status import screen as status_screen

    parts = [
        Text.assemble((f"{line.name:<11} ", "bold"), (printable(line.text), "red" if line.bad else ""))
        for line in status_screen.lines(found)
    ]
    if found.facts is None:
        return Group(*parts, Text("reading the tables ...", style="dim"))
    groups = table_of(status_screen.GROUPS)
    for row, bad in status_screen.group_rows(found.facts):
        groups.add_row(*row, style="red" if bad else "")
    checks = table_of(status_screen.CHECKS)
    for cells in status_screen.check_rows(found.facts):
        checks.add_row(*cells)
    shown = [table for table in (groups, checks) if table.row_count]
    return Group(*parts, *(part for table in shown for part in (Text(""), table)))
