"""The tables of a simulated world: rows that are only appended, each batch of an application once."""

from __future__ import annotations

from typing import Any, NamedTuple


class Half(NamedTuple):
    """A row of `half`. born and immunity in ms, store in µs; group and transaction are their hashes.

    delay as in an EVENT. committed: without a transaction.
    """

    queue: int
    offset: int
    store: int
    born: int
    immunity: int
    group: int
    transaction: int
    body: int
    delay: int = 0
    committed: bool = False


class Op(NamedTuple):
    """A row of `op`. number: of the check that was answered or COUNTED, else -1."""

    queue: int
    offset: int
    kind: int
    source: int
    store: int
    born: int
    group: int
    transaction: int
    number: int = -1


class Decision(NamedTuple):
    """A row of `decisions`. reason: of a DISCARD, else empty. batch: of all queries there were, by number.

    deliver_at: 0 = at once.
    """

    queue: int
    offset: int
    group: int
    transaction: int
    state: str
    reason: str
    times: int
    at: int
    batch: int
    deliver_at: int = 0


class Delivery(NamedTuple):
    """A row of `deliveries`."""

    queue: int
    offset: int
    group: int
    transaction: int
    deliver_at: int
    at: int
    batch: int


class Published(NamedTuple):
    """A row of a topic table."""

    queue: int
    offset: int
    body: int
    at: int
    batch: int


class Discarded(NamedTuple):
    """A row of `discarded`."""

    queue: int
    offset: int
    body: int
    reason: str
    times: int
    at: int
    batch: int


class Request(NamedTuple):
    """A row of `check_requests`."""

    queue: int
    offset: int
    group: int
    transaction: int
    times: int
    at: int
    batch: int


class Answer(NamedTuple):
    """A row of `check_answers`."""

    queue: int
    offset: int
    group: int
    transaction: int
    times: int
    outcome: str
    delivered: bool
    at: int
    batch: int


class Rejected(NamedTuple):
    """A row of `rejected`: the row of `half` or `op`, and why."""

    row: Half | Op
    reason: str
    batch: int


NAMES = ("half", "op", "topics", "decisions", "deliveries", "discarded", "check_requests", "check_answers", "rejected")


class Tables:
    """Rows by table, and Delta's transaction identifiers."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {name: [] for name in NAMES}
        self._versions: dict[tuple[str, str], int] = {}

    def append(self, name: str, rows: list[Any], app: str = "", version: int = 0) -> None:
        """Append, with ``app`` once: the same (app, version) is skipped when it comes again."""
        if not rows or (app and self._versions.get((name, app), -1) >= version):
            return
        if app:
            self._versions[name, app] = version
        self.rows[name] += rows

    def last_version(self, name: str, app: str) -> int | None:
        """The last version that an application has appended."""
        return self._versions.get((name, app))
