"""`checkback outages`: when producer groups did not answer, also what is over."""

from __future__ import annotations

from typing import Any

from checkback.commands.answering import answering, none_of, print_answer
from checkback.commands.options import (
    AsOf,
    Config,
    Csv,
    Debug,
    Group,
    Json,
    Overrides,
    SinceEver,
    app,
    prepared_for_tables,
)
from checkback.commands.printing import console, shown, table_of

#: outages in the table for people; --json shows all
SHOWN = 50


@app.command()
def outages(
    since: SinceEver = None,
    as_of: AsOf = None,
    group: Group = None,
    as_json: Json = False,
    as_csv: Csv = False,
    config: Config = None,
    overrides: Overrides = None,
    debug: Debug = False,
) -> None:
    """Show when a producer group did not answer its checks, or only UNKNOWN, the last first; also what is over."""
    settings = prepared_for_tables(config, overrides, debug)
    with answering(settings, "outages") as answers:
        rows = answers.outages(as_of, since=since, group=group)
        unknown = none_of(answers, group, rows)
    asked = (("of the group", group), ("since", since), ("until", as_of))
    nothing = " ".join(["No outage", *(f"{name} {value}" for name, value in asked if value is not None)])
    print_answer(rows, as_json, as_csv, SHOWN, _outages_table, f"{nothing}.{unknown}")


def _until(row: dict[str, Any]) -> str:
    """When it was over; as long as nobody was asked since, that is not known."""
    if row["over_at"] is not None:
        return str(row["over_at"])
    return f"{'goes on (asked' if row['still_pending'] else '- (not asked since'} {row['last_vain_at']})"


def _outages_table(rows: list[dict[str, Any]]) -> None:
    table = table_of("group", "from", "until", "said", "endpoints", "waited", "discarded", "still pending")
    for row in rows:
        table.add_row(
            *(shown(row[name]) for name in ("producer_group", "began_at")),
            _until(row),
            " ".join(row[name] for name in ("outcome", "said") if row[name] is not None),
            " ".join(row["endpoints"]) or "-",
            *(str(row[name]) for name in ("transactions", "discarded", "still_pending")),
        )
    console().print(table)
