"""The client for Node.js, or why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.npm import NotFetchedError, node_modules

if TYPE_CHECKING:
    from pathlib import Path

NODE_CLIENT = "rocketmq-client-nodejs@1.0.8"


@pytest.fixture(scope="session")
def node_path(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NODE_PATH with the client for Node.js."""
    cache = getattr(pytestconfig, "cache", None)  # absent with -p no:cacheprovider
    folder = tmp_path_factory.mktemp("rocketmq") if cache is None else cache.mkdir("rocketmq")
    try:
        return node_modules(folder, NODE_CLIENT)
    except NotFetchedError as error:
        pytest.skip(f"RocketMQ's client for Node.js is not tested: {error}")
