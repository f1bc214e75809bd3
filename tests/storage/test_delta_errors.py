"""What a failed read of a table's log says is to be done."""

from __future__ import annotations

import pytest

from checkback.storage.log.delta_errors import read_fix


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("Forked process detected - current PID is 2 but the tokio runtime was created by 1", "fork before that, or"),
        ("Invalid JSON in log record", "restore it"),
    ],
)
def test_a_table_is_not_to_be_restored_if_it_is_not_damaged(said: str, fix: str) -> None:
    assert fix in read_fix(OSError(said), "restore it")
