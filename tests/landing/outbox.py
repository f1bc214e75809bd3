"""An outbox table of a test, and what landed of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.landing.table_query import TableOptions, land
from checkback.landing.table_source import TableSource

if TYPE_CHECKING:
    from pathlib import Path

    from checkback.landing.landing_queries import Landed
    from landing.fixtures import Lakehouse

OUTBOX = "id STRING, aggregatetype STRING, aggregateid STRING, type STRING, payload STRING"


class Outbox:
    """A source table of one test, in a folder whose name is hard on SQL."""

    def __init__(self, lake: Lakehouse, place: Path, columns: str = OUTBOX, **properties: str) -> None:
        self.lake, self.place, self.spark = lake, place, lake.spark
        told = "".join(f"'{key}'='{value}'," for key, value in properties.items())
        self.sql(f"CREATE TABLE {{}} ({columns}) USING delta" + (f" TBLPROPERTIES ({told[:-1]})" if told else ""))

    def sql(self, text: str) -> None:
        self.spark.sql(text.replace("{}", f"delta.`{self.place}`"))

    def add(self, *rows: str) -> None:
        """Append rows in one commit, each a list of SQL."""
        told = ", ".join(f"({row})" for row in rows)
        self.sql(f"INSERT INTO {{}} VALUES {told}")  # noqa: S608 - of this file

    def orders(self, *ids: int) -> None:
        self.add(*(f"'{number}', 'orders', 'a{number % 3}', 'created', 'body {number}'" for number in ids))

    def land(self, *, as_outbox: bool = True, lake: Lakehouse | None = None, **given: Any) -> Landed:
        given = ({"outbox": str(self.place)} if as_outbox else {}) | given
        lake = lake or self.lake
        return land(lake.spark, lake.settings, TableOptions(**given), available_now=True)

    @property
    def query(self) -> str:
        return TableSource.find(self.spark, str(self.place), "--outbox").query


def bodies(lake: Lakehouse) -> list[tuple[int, str, str]]:
    """Offset, transaction id and body of what is in `half`."""
    return [
        (row[0], row[1], bytes(row[2]).decode()) for row in lake.rows("half", "queue_offset", "transaction_id", "body")
    ]
