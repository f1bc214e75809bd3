"""The tables of a simulated world: rows are appended, each batch of an application once, and removed by retention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


#: body of a message whose content was erased
NOTHING = -1


class Half(NamedTuple):
    """A row of `half`. born and immunity in ms, store in µs; group and transaction are their hashes.

    body: what stands for the content, in all tables. delay as in an EVENT. committed: without a transaction.
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
    group: int
    transaction: int
    body: int
    at: int
    batch: int


class Discarded(NamedTuple):
    """A row of `discarded`."""

    queue: int
    offset: int
    group: int
    transaction: int
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
    at: int


class Batch(NamedTuple):
    """A row of `batches`. first, first_at: of a run, else None."""

    app: str
    batch: int
    at: int
    finished: int
    committed: int
    scheduled: int
    delivered: int
    first: int | None = None
    first_at: int | None = None


NAMES = (
    *("half", "op", "topics", "decisions", "deliveries", "discarded"),
    *("check_requests", "check_answers", "rejected", "batches"),
)


class Tables:
    """Rows by table, and Delta's transaction identifiers.

    ``landed``: all rows there ever were, as a stream reads them. ``rows``: those that are left, as they are now, and
    ``places`` where in ``landed`` each was. ``removals``: commits of retention and erasures.
    """

    def __init__(self) -> None:
        self.landed: dict[str, list[Any]] = {name: [] for name in NAMES}
        self.rows: dict[str, list[Any]] = {name: [] for name in NAMES}
        self.places: dict[str, list[int]] = {name: [] for name in NAMES}
        self.removals = 0
        self._versions: dict[tuple[str, str], int] = {}

    def append(self, name: str, rows: list[Any], app: str = "", version: int = 0) -> None:
        """Append, with ``app`` once: the same (app, version) is skipped when it comes again."""
        if not rows or (app and self._versions.get((name, app), -1) >= version):
            return
        if app:
            self._versions[name, app] = version
        self.places[name] += range(len(self.landed[name]), len(self.landed[name]) + len(rows))
        self.landed[name] += rows
        self.rows[name] += rows

    def until(self, name: str, place: int) -> list[Any]:
        """The rows that are left of the first ``place`` that landed."""
        return [row for row, at in zip(self.rows[name], self.places[name], strict=True) if at < place]

    def keep(self, name: str, kept: Sequence[tuple[int, Any]], versions: Mapping[str, int]) -> None:
        """A commit that removes or empties rows: what is left, places and rows; and transaction identifiers."""
        self.places[name] = [place for place, _ in kept]
        self.rows[name] = [row for _, row in kept]
        self._versions |= {(name, app): version for app, version in versions.items()}
        self.removals += 1

    def last_version(self, name: str, app: str) -> int | None:
        """The last version that an application has appended."""
        return self._versions.get((name, app))
