"""Durations as people are shown them."""

from __future__ import annotations

import pytest

from checkback.messages.durations import span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (59.9, "59s"), (60, "1m"), (200, "3m 20s"), (7_500, "2h 5m"), (86_400, "1d"), (273_600, "3d 4h")],
)
def test_span(seconds: float, text: str) -> None:
    assert span(seconds) == text
