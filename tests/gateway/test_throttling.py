"""The gateway on an object store that throttles for longer than its client repeats requests."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest

from checkback.gateway.metrics import Metrics
from checkback.gateway.service import GatewayService
from checkback.settings import Settings
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_reader import read_rows
from gateway.process import PATIENCE_S, half
from gateway.services import code, half_sent
from support import s3_server
from support.fault_proxy import fault_proxy, set_throttled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from checkback.gateway.problems import Answer

pytestmark = pytest.mark.slow


def _serving(settings: Settings, act: Callable[[GatewayService], Awaitable[None]]) -> None:
    async def run() -> None:
        service = await asyncio.to_thread(GatewayService, settings, Metrics(), lambda error: pytest.fail(str(error)))
        committing = asyncio.create_task(service.run())
        try:
            await asyncio.wait_for(act(service), PATIENCE_S)
        finally:
            service.hurry()
            service.close()
            await committing

    asyncio.run(run())


async def _sent(service: GatewayService, name: str) -> Answer:
    (answer,) = await service.halves.take([half_sent(half(name), 1)], None)
    return answer


@pytest.mark.processes
def test_messages_are_refused_while_the_store_throttles_and_stored_once_after_it(
    s3_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503, which producers answer by sending again; neither a restart nor a second row."""
    backoff = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=5), "base": 2}
    retries = {"max_retries": 3, "backoff": backoff, "retry_timeout": timedelta(seconds=5)}
    monkeypatch.setattr("checkback.storage.files.object_store._RETRIES", retries)
    with fault_proxy(s3_port) as port:
        storage = {"root": f"{s3_server.ROOT}/{uuid.uuid4().hex}", "options": s3_server.options(port)}
        settings = Settings.model_validate({"storage": storage, "gateway": {"linger": "0s"}})

        async def act(service: GatewayService) -> None:
            for number in range(3):
                await asyncio.to_thread(set_throttled, port, True)
                for name in (f"t-{number}", f"u-{number}", f"t-{number}"):
                    assert code(await _sent(service, name)) == "storage_unavailable"
                await asyncio.to_thread(set_throttled, port, False)
                for name in (f"t-{number}", f"u-{number}", f"t-{number}"):
                    assert code(await _sent(service, name)) is None

        _serving(settings, act)
        files = DeltaLog("half", f"{storage['root']}/half", sync=False).data_files()
        found = [read_rows(file.path, "half", ["transaction_id"], pc.scalar(True)) for file in files]
        names = [name for rows in found for name in rows.column("transaction_id").to_pylist()]
    assert sorted(names) == sorted(f"{kind}-{number}" for kind in "tu" for number in range(3))
