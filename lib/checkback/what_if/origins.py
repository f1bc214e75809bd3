"""In which commit each row of `half` and `op` landed, and so which batch read it: from the tables' logs.

A file's commit tells it of all its rows. `maintain` and OPTIMIZE put the rows of many files into one: such a row is
from the one of them whose statistics fit it (queue, offset, store_timestamp). Where those of several fit, and
different batches read them, or the log does not go back so far, it is not told.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from checkback.storage.files import table_files
from checkback.storage.files.log_files import commit_file
from checkback.storage.files.object_store import concurrently
from checkback.storage.log.commit_reader import CommitReader
from checkback.storage.log.delta_errors import commit_unreadable
from checkback.storage.schemas import STATISTICS
from checkback.storage.timestamps import us_of
from checkback.what_if.read_history import place_of
from checkback.what_if.records import NOT_TOLD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from checkback.what_if.read_history import ReadHistory

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_ANY = _LEAST, _MOST


class Piece(NamedTuple):
    """Rows that landed with one file. ``spans``: (least, most) of queue, offset and store_timestamp (µs)."""

    code: int
    spans: tuple[tuple[int, int], ...]


class Commit(NamedTuple):
    """A commit of a table: the log's ``add`` actions in order, and the paths of the files that it removed."""

    version: int
    adds: Sequence[Mapping[str, Any]]
    removes: Sequence[str]


@dataclass(frozen=True)
class Origins:
    """Of one table: by a file's name the pieces that it was made of."""

    name: str
    pieces: Mapping[str, Sequence[Piece]] = field(default_factory=dict)

    def codes(self, file: str, rows: pa.Table) -> NDArray[Any]:
        """What is told of these rows of a file; they have the table's columns with statistics."""
        pieces = self.pieces.get(file, ())
        if len({piece.code for piece in pieces}) == 1:
            return np.full(rows.num_rows, pieces[0].code)
        columns = [_integers(rows.column(name)) for name in STATISTICS[self.name]]
        found, doubtful = np.full(rows.num_rows, NOT_TOLD), np.zeros(rows.num_rows, bool)
        taken = np.zeros(rows.num_rows, bool)
        ends = [(int(column.min()), int(column.max())) for column in columns] if rows.num_rows else []
        for code, spans in pieces if ends else ():
            if any(most < first or least > last for (least, most), (first, last) in zip(spans, ends, strict=True)):
                continue
            fits = np.ones(rows.num_rows, bool)
            for column, (least, most) in zip(columns, spans, strict=True):
                fits &= (column >= least) & (column <= most)
            doubtful |= fits & taken & (found != code)
            found[fits] = code
            taken |= fits
        found[doubtful] = NOT_TOLD
        return found


def origins(name: str, place: str, history: ReadHistory, turn: int = 0, until: int | None = None) -> Origins:
    """Of the table in the folder ``place``, from its log; of nothing if no batch tells what it read.

    ``turn``: of what batches before it read, nothing need be told. ``until``: the version that is read; None = newest.
    """
    first = history.first_version(turn)
    reader = None if first is None else CommitReader.of(place, first)
    if reader is None:
        return Origins(name)
    versions = range(reader.oldest, (reader.newest if until is None else until) + 1)
    # Rows of commits that the log no longer has landed before the first that it has.
    before = (_LEAST, _MOST if reader.oldest == 0 else reader.made_at(reader.oldest) * 1000 + 999)
    older = Piece(NOT_TOLD, (_ANY, _ANY, before))
    commits = concurrently(place, lambda version: _commit(place, version), versions)
    return traced(name, (commit for commit in commits if commit is not None), history, older)


def traced(name: str, commits: Iterable[Commit], history: ReadHistory, older: Piece) -> Origins:
    """From the commits in order. ``older``: for the rows of a file that none of them has added. Pure."""
    found: dict[str, Sequence[Piece]] = {}
    for commit in commits:
        fresh = [add for add in commit.adds if add.get("dataChange", True)]
        places = np.array([place_of(commit.version, index) for index in range(len(fresh))], np.int64)
        for add, code in zip(fresh, history.of(places).tolist(), strict=True):
            found[_file(add["path"])] = [Piece(code, _spans(name, add))]
        rewritten = [add for add in commit.adds if not add.get("dataChange", True)]
        if rewritten:
            parts = [piece for path in commit.removes for piece in found.get(_file(path), (older,))]
            parts = list(dict.fromkeys(parts))
            for add in rewritten:
                found[_file(add["path"])] = parts
        for path in commit.removes:
            found.pop(_file(path), None)
    return Origins(name, found)


def _commit(place: str, version: int) -> Commit | None:
    """None: log cleanup has just removed it."""
    file = commit_file(place, version)
    try:
        actions = [json.loads(line) for line in table_files.lines(file) if line.startswith(('{"add"', '{"remove"'))]
        adds = [action["add"] for action in actions if "add" in action]
        return Commit(version, adds, [action["remove"]["path"] for action in actions if "remove" in action])
    except (OSError, ValueError, KeyError) as error:
        if not table_files.exists(file):
            return None
        raise commit_unreadable(file, error) from error


def _file(path: str) -> str:
    return unquote(path).rpartition("/")[2]


def _spans(name: str, add: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Of the columns with statistics; without them anything fits."""
    stats = json.loads(add.get("stats") or "{}")
    least, most = stats.get("minValues") or {}, stats.get("maxValues") or {}
    return tuple(
        (_number(least[column], 0), _number(most[column], 999)) if column in least and column in most else _ANY
        for column in STATISTICS[name]
    )


def _number(value: Any, more: int) -> int:
    """An integer, or a time in µs, which statistics truncate to ms: ``more`` is added."""
    if isinstance(value, int):
        return value
    at = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
    return us_of(at) + more


def _integers(column: pa.ChunkedArray) -> NDArray[Any]:
    found: NDArray[Any] = column.cast(pa.int64()).fill_null(_LEAST).to_numpy()
    return found
