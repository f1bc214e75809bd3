"""A question: SQL that Spark and DuckDB evaluate alike, its values, and the order of its rows (`engine`). Immutable."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from checkback.query.engines.engine import Value


@dataclass(frozen=True)
class Question:
    """``sql`` with its ``values``; the rows are ordered by ``order``, if it is given. Its methods narrow the rows.

    ``since``: gives the value of the same name, if it is not None (`View.since`).
    """

    sql: str
    order: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    since: datetime | str | None = None
    conditions: tuple[str, ...] = ()
    limit: int | None = None
    offset: int = 0

    @property
    def text(self) -> str:
        """The whole SQL."""
        where = f" WHERE {' AND '.join(self.conditions)}" if self.conditions else ""
        page = f" ORDER BY {self.order}" if self.order else ""
        page += "" if self.limit is None else f" LIMIT {self.limit:d}"
        page += f" OFFSET {self.offset:d}" if self.offset else ""
        return f"SELECT * FROM ({self.sql}) AS answer{where}{page}"

    def where(self, column: str, value: Value) -> Question:
        """Only rows with this value; all if it is None."""
        return self._narrowed(column, f"{column} = :{{name}}", value)

    def at(self, place: tuple[int, int] | None) -> Question:
        """Only rows of the half message at this queue id and offset; all if it is None."""
        # of pandas they may be NumPy's
        return self if place is None else self.where("queue_id", int(place[0])).where("queue_offset", int(place[1]))

    def unlike(self, column: str, value: Value) -> Question:
        """Only rows with another value."""
        return self._narrowed(column, f"{column} <> :{{name}}", value)

    def begins(self, column: str, text: str | None) -> Question:
        """Only rows whose value begins so; all if it is None."""
        return self._narrowed(column, f"startswith({column}, :{{name}})", text)

    def more(self, column: str, number: float | None) -> Question:
        """Only rows with a greater number; all if it is None."""
        return self._narrowed(column, f"{column} > :{{name}}", number)

    def page(self, limit: int | None, offset: int = 0) -> Question:
        """Only ``limit`` rows after the first ``offset``."""
        return replace(self, limit=limit, offset=offset)

    def _narrowed(self, column: str, condition: str, value: Value) -> Question:
        if value is None:
            return self
        name = f"only_{len(self.conditions)}_{column}"
        return replace(
            self,
            conditions=(*self.conditions, condition.format(name=name)),
            values={**self.values, name: value},
        )
