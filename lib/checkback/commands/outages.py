"""`checkback outages`: when producer groups did not answer, also what is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.commands.answering import answering, nothing, print_answer
from checkback.commands.options import ANSWERS, Answer, AsOf, OfGroup, Since, app, command
from checkback.commands.printing import columns

if TYPE_CHECKING:
    from checkback.commands.printing import Row

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
        rows = answers.outages(as_of, since=since, group=group)
        none = "" if rows.num_rows else nothing(answers, "No outage", "is known", as_of, group, since=since)
    print_answer(rows, options.output, COLUMNS, SHOWN, none)
