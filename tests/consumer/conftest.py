"""A lake that batches are published to, and consumers of it that are shut down at the test's end."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consumer.published import Published, new_lake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.consumer import PushConsumer


@pytest.fixture
def lake(tmp_path: Path) -> Published:
    return new_lake(tmp_path / "lake")


@pytest.fixture
def running() -> Iterator[list[PushConsumer]]:
    """Consumers to shut down."""
    consumers: list[PushConsumer] = []
    yield consumers
    for consumer in consumers:
        consumer.close(timedelta(seconds=10))
