"""kill -9, SIGSTOP, SIGTERM of consumers at random moments, while batches are published."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from crash_consumer.kinds import Kind
from crash_consumer.rounds import run

if TYPE_CHECKING:
    from pathlib import Path

#: more of them: python -m crash_consumer
_KINDS = (Kind(tags="A || B"), Kind(orderly=True), Kind(batch=3, exactly_once=True))


@pytest.mark.processes
@pytest.mark.parametrize("kind", _KINDS, ids=str)
def test_group_under_kills_keeps_its_promises(tmp_path: Path, kind: Kind) -> None:
    """SEED=n for the same moments again, as far as moments can be the same."""
    seed = int(os.environ.get("SEED") or 0) or Random().randrange(1, 10**6)
    print(f"SEED={seed}")
    figures = run(str(tmp_path), 1, Random(seed), print, 5.0, kind)
    print(figures)
    assert figures.messages > 0
    assert figures.good
