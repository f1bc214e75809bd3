"""Delta's transaction identifiers, read at once: what delta-rs says of each, wherever the log begins. Without Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkback.storage.log import delta_log
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.log_tail import TransactionVersions
from checkback.storage.queue_owners import versions_of
from support.examples import fewer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

APPS = ("gateway/0", "kafka/1000", 'an "app"', "land/ü/half")


def _log(folder: Path) -> DeltaLog:
    place = str(folder / "half")
    DeltaLog.create("half", place, sync=False)
    return DeltaLog("half", place, sync=False)


def _name(place: Path, version: int, end: str) -> Path:
    return place / "half" / "_delta_log" / f"{version:020}.{end}"


@settings(fewer(4), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.dictionaries(st.sampled_from(APPS), st.integers(0, 1 << 60), min_size=1),
            st.sampled_from(["checkpoint", "clean", "look"]),
        ),
        max_size=12,
    )
)
def test_versions_are_those_that_delta_rs_says(
    steps: list[dict[str, int] | str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("table")
    log, followed, checkpoint = _log(folder), TransactionVersions(str(folder / "half")), 0
    for step in steps:
        if isinstance(step, dict):
            log.commit_after([], {}, step)
        elif step == "checkpoint":
            log.checkpoint()
            checkpoint = log.version()
        elif step == "clean":
            for version in range(checkpoint):
                _name(folder, version, "json").unlink(missing_ok=True)
        elif step == "look":
            followed.at(log.version())
    table = DeltaTable(str(folder / "half"))
    found = {app: table.transaction_version(app) for app in APPS}
    expected = {app: last for app, last in found.items() if last is not None}
    assert followed.at(table.version()) == expected
    assert log.versions(APPS) == {app: expected.get(app) for app in APPS}


def test_log_that_is_not_read_so_is_left_to_delta_rs(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.commit_after([], {}, {"app": 7})
    log.checkpoint()
    for version in (0, 1):
        _name(tmp_path, version, "json").unlink()
    whole, part = _name(tmp_path, 1, "checkpoint.parquet"), "checkpoint.0000000001.0000000001.parquet"
    os.replace(whole, _name(tmp_path, 1, part))
    (whole.parent / "_last_checkpoint").unlink()
    assert TransactionVersions(str(tmp_path / "half")).at(1) is None
    assert DeltaLog("half", str(tmp_path / "half"), sync=False).versions(["app", "b"]) == {"app": 7, "b": None}
    assert TransactionVersions(str(tmp_path / "nothing")).at(1) is None


def test_many_queues_are_looked_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may name as many as it has lines."""

    class Table(DeltaTable):
        """One that reads its log for every application."""

        def transaction_version(self, app_id: str) -> NoReturn:
            raise AssertionError(app_id)

    _log(tmp_path).commit_after([], {}, {"gateway/99999": 1 << 32})
    monkeypatch.setattr(delta_log, "DeltaTable", Table)
    found: Mapping[str, int | None] = versions_of(_log(tmp_path), range(100_000))
    assert {app for app, version in found.items() if version is not None} == {"gateway/99999"}
