"""Two gateways that start for the first time at the same moment, on tables that neither finds."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from gateway.process import Gateway, half
from support import s3_server

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_both_serve(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    root, environ = str(tmp_path / "lake"), {}
    if kind == "s3":
        root = f"{s3_server.ROOT}/{uuid.uuid4().hex}"
        options = s3_server.options(request.getfixturevalue("s3_port"))
        environ = {name.upper(): value for name, value in options.items()}
    with ThreadPoolExecutor(2) as pool:
        starts = [
            pool.submit(
                Gateway,
                root,
                f"gateway.queues=[{queue}]",
                f"gateway.journal={tmp_path}/journal-{queue}",
                f"storage.checkpoints={tmp_path}",
                environ=environ,
            )
            for queue in (0, 1)
        ]
        gateways = [start.result() for start in starts]
    try:
        for queue, gateway in enumerate(gateways):
            answer = gateway.post("/v1/half", half(f"t-{queue}"))
            assert (answer.status_code, answer.json()["queue_id"]) == (200, queue)
    finally:
        stopped = [gateway.stop() for gateway in gateways]
    assert [exit_code for exit_code, _ in stopped] == [0, 0]
