"""kill -9 of the whole application at random moments, while transactions land."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from crash.kills import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.processes
@pytest.mark.spark
def test_killed_under_load_it_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """SEED=n for the same moments again, as far as moments can be the same. More rounds: `make test-crash`."""
    seed = int(os.environ.get("SEED") or 0) or Random().randrange(1, 10**6)
    print(f"SEED={seed}")
    figures = run(str(tmp_path), 3, Random(seed), print)
    print(figures)
    assert figures.books.transactions > 0
    assert (figures.books.lost, figures.books.duplicated, figures.books.faults) == ([], [], [])
