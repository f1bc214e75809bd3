"""A lake that batches are published to, and pushed groups that are closed at the test's end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from checkback.push.pushed_group import PushedGroup
from checkback.settings import Settings
from consumer.published import Published, new_lake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Push = Callable[..., PushedGroup]


@pytest.fixture
def lake(tmp_path: Path) -> Published:
    return new_lake(tmp_path / "lake")


@pytest.fixture
def pushing(lake: Published) -> Iterator[Push]:
    """Starts the group credits on the topic payments, with these settings of `push.credits`."""
    groups: list[PushedGroup] = []

    def start(url: str, check: dict[str, Any] | None = None, **push: Any) -> PushedGroup:
        about = {"topic": "payments", "url": url, **push}
        values = {"storage": {"root": lake.tables.root, "sync": False}, "push": {"credits": about}}
        values |= {"check": check or {}, "consumer": {"commit_interval": "50ms"}}
        group = PushedGroup("credits", Settings.model_validate(values))
        groups.append(group)
        group.start()
        return group

    yield start
    for group in groups:
        group.close()
