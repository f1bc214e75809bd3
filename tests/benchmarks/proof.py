"""No figure without a proof: after the load, the audit, and as many rows as were promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.processes import lake
from benchmarks.report import say
from checkback.errors import CheckbackError
from checkback.query.answers import Answers
from checkback.storage.table_scan import read_topics

if TYPE_CHECKING:
    from benchmarks.processes import Lakehouse


def prove(place: Lakehouse, published: int, pending: int, scheduled: int = 0) -> None:
    """Raises CheckbackError unless the audit is clean, and so many are published, once each, pending and scheduled."""
    report = Answers(place.settings, None if place.tables.readable else place.spark).audit()
    found = {one.finding.name: one.count for one in report.found}
    broken = [f"{one.count} {one.finding.name}" for one in report.found if one.finding.level == "broken"]
    topics = dict.fromkeys(place.tables.topics(place.spark))
    rows = read_topics(place.spark, place.tables, topics, ("batch_id",)).count()
    if (rows, *(found[name] for name in ("published", "pending", "scheduled"))) != (
        published,
        published,
        pending,
        scheduled,
    ):
        broken.append(
            f"{found['published']} published in {rows} rows, {found['pending']} pending and {found['scheduled']} "
            f"scheduled, instead of {published}, {pending} and {scheduled}"
        )
    if broken:
        raise CheckbackError(f"the audit finds {', '.join(broken)}", place.root, "the figure does not count")
    say(f"proof: {published} published, once each, {pending} pending, {scheduled} scheduled; the audit is clean")


def prove_tables(root: str, published: int, pending: int, **transaction: str) -> None:
    """The same of tables that an application has left. ``transaction``: its settings, where not the defaults."""
    with lake(root, transaction={"timeout": "6s", **transaction}) as place:
        prove(place, published, pending)
