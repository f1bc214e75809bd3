"""Files are skipped only when their statistics exclude every value of a span."""

from __future__ import annotations

import pyarrow as pa
import pytest

from checkback.storage.log.snapshot_files import Span

#: least, greatest, nulls; None = not known
_FILES = [(0, 9, 0), (10, 19, 0), (20, 29, 0), (20, 29, 1), (None, None, 5), (None, None, None), (10, 19, None)]


def _actions(*columns: str) -> pa.Table:
    """Add actions with these statistics, and ``path``: its number in _FILES."""
    known = dict(zip(("min.at", "max.at", "null_count.at"), zip(*_FILES, strict=True), strict=True))
    numbers = [str(number) for number in range(len(_FILES))]
    return pa.table({"path": numbers} | {name: pa.array(known[name], pa.int64()) for name in columns})


@pytest.mark.parametrize(
    ("first", "end", "kept"),
    [
        (10, 20, "1456"),
        (9, 20, "01456"),
        (10, 21, "123456"),
        (10, None, "123456"),
        (30, None, "45"),
        (None, 10, "03456"),  # and null
        (None, 0, "3456"),
        (-5, 0, "45"),
    ],
)
def test_a_file_is_kept_unless_it_has_no_such_value(first: int | None, end: int | None, kept: str) -> None:
    found = Span("at", first, end).files(_actions("min.at", "max.at", "null_count.at"))
    assert "".join(found.column("path").to_pylist()) == kept


@pytest.mark.parametrize("columns", [(), ("min.at", "max.at")])
def test_what_is_not_known_of_files_keeps_them(columns: tuple[str, ...]) -> None:
    actions = _actions(*columns)
    assert Span("at", None, 10).files(actions).num_rows == len(_FILES)
    assert Span("other", 10, 20).files(actions).num_rows == len(_FILES)
