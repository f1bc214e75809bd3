"""The stops of a time slider: all of the time, whatever the number of batches."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from checkback.query.answers import Answers
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.stories import DECIDED, Transaction, batch, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("number", "stops"),
    [
        (1, [0]),
        (8, [7, 6, 5, 4, 3, 2, 1, 0]),
        (9, [8, 7, 6, 5, 3, 1, 0]),
        (1003, [1002, 1001, 1000, 999, 749, 499, 249, 0]),
    ],
)
def test_newest_batches_one_by_one_then_steps_to_the_first(number: int, stops: list[int], tmp_path: Path) -> None:
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    times = [DECIDED + timedelta(seconds=batch_id) for batch_id in range(number)]
    rows = [Transaction(0).half(), *(batch(batch_id, time) for batch_id, time in enumerate(times))]
    write(None, Tables.of(settings.storage), rows)
    answers = Answers(settings)
    assert answers.batch_stops(near=4, far=4).column("batch_id").to_pylist() == stops
    # A batch of the stories is finished a second later.
    assert answers.last_batch(times[-1] + timedelta(seconds=1)) == number - 1
    assert answers.last_batch(times[0] + timedelta(milliseconds=1999)) == 0
    assert answers.last_batch(times[0]) is None
