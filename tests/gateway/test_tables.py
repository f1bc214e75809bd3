"""Commits that fail, and those of which nobody knows: nothing is told that is not so, no offset is given twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from checkback.errors import CheckbackError, FencedError, StorageError
from checkback.gateway.appender import Appender, OutcomeUnknownError, half_rows
from checkback.gateway.health import HealthState
from checkback.messages.half import Half
from checkback.storage.log.delta_log import AlteredError, DeltaLog, ReplacedError
from gateway.process import TO_TABLE, Gateway, half, rows
from support.features import with_checkpoint_protection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from checkback.storage.parquet.parquet_files import ParquetFile

HALF = Half(-1, -1, "t", "orders", "payments", 0, None, None, {"a": "b"}, b"body", 1000, None)


def _appender(root: Path, epoch: int = 1) -> Appender:
    appender = Appender(str(root), "half", [0])
    appender.claim(epoch)
    return appender


def _append(appender: Appender, first: int) -> None:
    appender.append(half_rows([HALF, HALF], 0, first, 2000))


def _offsets(root: Path) -> list[int]:
    return [row["queue_offset"] for row in rows(root, "half")]


def _files(root: Path) -> int:
    """Files of rows, whether a commit names them or not."""
    return len(list((root / "half").glob("*.parquet")))


class Failing:
    """A log whose next commit fails: before it is made, or after."""

    def __init__(self, appender: Appender, made: bool, readable: bool = True) -> None:
        self._log: Any = appender._log
        self._made = made
        self._readable = readable
        appender._log = self  # type: ignore[assignment]

    def commit_after(
        self, files: Sequence[ParquetFile], expected: Mapping[str, int | None], versions: Mapping[str, int]
    ) -> None:
        if self._made:
            self._log.commit_after(files, expected, versions)
        raise StorageError("the commit failed: the disk said so")

    def versions(self, apps: Sequence[str]) -> dict[str, int | None]:
        if not self._readable:
            raise StorageError("the table's log cannot be read")
        found: dict[str, int | None] = self._log.versions(apps)
        return found

    def flush(self) -> None:
        self._log.flush()

    def mend(self, appender: Appender) -> None:
        appender._log = self._log


def test_commit_that_failed_can_be_made_again(tmp_path: Path) -> None:
    appender = _appender(tmp_path)
    failing = Failing(appender, made=False)
    with pytest.raises(StorageError, match="the disk said so"):
        _append(appender, 0)
    assert _files(tmp_path) == 0
    failing.mend(appender)
    _append(appender, 0)
    assert _offsets(tmp_path) == [0, 1]


def test_part_that_cannot_be_written_leaves_no_file_of_another(tmp_path: Path) -> None:
    appender = _appender(tmp_path)
    part = half_rows([HALF], 0, 0, 2000)
    with pytest.raises(KeyError):
        appender.append(part, part.drop_columns(["body"]))
    assert _files(tmp_path) == 0


def test_commit_that_was_made_all_the_same_is_found_in_the_log(tmp_path: Path) -> None:
    appender = _appender(tmp_path)
    failing = Failing(appender, made=True)
    _append(appender, 0)
    failing.mend(appender)
    _append(appender, 2)
    assert _offsets(tmp_path) == [0, 1, 2, 3]


@pytest.mark.parametrize("made", [True, False])
def test_commit_of_which_nobody_knows_ends_the_gateway(tmp_path: Path, made: bool) -> None:
    appender = _appender(tmp_path)
    Failing(appender, made, readable=False)
    with pytest.raises(OutcomeUnknownError, match="is not known"):
        _append(appender, 0)
    assert _files(tmp_path) == 1
    assert _offsets(tmp_path) == ([0, 1] if made else [])


def test_later_epoch_fences_an_earlier_one(tmp_path: Path) -> None:
    """And an earlier one cannot claim again."""
    first = _appender(tmp_path, 1)
    _append(first, 0)
    second = _appender(tmp_path, 2)
    with pytest.raises(FencedError, match="another gateway"):
        _append(first, 2)
    with pytest.raises(FencedError, match="another gateway"):
        first.claim(2)
    _append(second, 2)
    assert _offsets(tmp_path) == [0, 1, 2, 3]
    assert _files(tmp_path) == 2


def test_altered_table_is_refused(tmp_path: Path) -> None:
    from checkback.storage.schemas import arrow_schema, properties_of

    place, own = str(tmp_path / "half"), properties_of("half")
    DeltaTable.create(
        place, arrow_schema("half"), partition_by=["queue_id"], configuration=own, raise_if_key_not_exists=False
    )
    with pytest.raises(CheckbackError, match="cannot append to it"):
        Appender(str(tmp_path), "half", [0])


def test_table_that_is_altered_under_a_gateway_is_told_at_once(tmp_path: Path) -> None:
    """It ends with a line, and not at its next start; a further column that may be null disturbs nobody."""
    appender = _appender(tmp_path)
    DeltaTable(tmp_path / "half").alter.add_columns([Field("note", PrimitiveType("string"))])
    _append(appender, 0)
    Appender(str(tmp_path), "half", [0])
    DeltaTable(tmp_path / "half").alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(
        AlteredError, match=r"half: somebody has .*altered the table: the gateway cannot append"
    ) as raised:
        _append(appender, 2)
    stopped: list[CheckbackError] = []
    assert HealthState(stopped.append).failed(raised.value).code == "stopping"
    assert stopped == [raised.value]
    assert _offsets(tmp_path) == [0, 1]
    assert _files(tmp_path) == 1


def test_table_that_is_made_anew_under_a_gateway_ends_it(tmp_path: Path) -> None:
    """It would answer 503 for ever: its queue is another one in that table."""
    appender = _appender(tmp_path)
    os.rename(tmp_path / "half", tmp_path / "away")
    DeltaLog.create("half", str(tmp_path / "half"))
    with pytest.raises(ReplacedError, match="half: the table was recreated meanwhile") as raised:
        _append(appender, 0)
    stopped: list[CheckbackError] = []
    assert HealthState(stopped.append).failed(raised.value).code == "stopping"
    assert stopped == [raised.value]
    assert _files(tmp_path) == 0


def test_features_that_were_dropped_are_no_obstacle(tmp_path: Path) -> None:
    """DROP FEATURE of Spark (deletionVectors, columnMapping) leaves one that concerns those who clean up the log."""
    appender = _appender(tmp_path)
    with_checkpoint_protection(tmp_path / "half")
    _append(appender, 0)
    _append(Appender(str(tmp_path), "half", [0]), 2)
    assert _offsets(tmp_path) == [0, 1, 2, 3]


def test_versions_that_delta_forgets_are_no_other_gateway(tmp_path: Path) -> None:
    """Who set the property is told so, by a gateway that runs as by one that starts; without it both go on."""
    appender = _appender(tmp_path)
    name = "delta.setTransactionRetentionDuration"

    def set_to(value: str) -> None:
        DeltaTable(tmp_path / "half").alter.set_table_properties({name: value})

    set_to("interval 0 seconds")
    for act in (lambda: _append(appender, 0), lambda: Appender(str(tmp_path), "half", [0]).epoch()):
        with pytest.raises(StorageError, match=rf"{name} is set: .*; ALTER TABLE delta.`.*/half` UNSET TBLPROPERTIES"):
            act()
    set_to("interval 30 days")
    _append(appender, 0)
    assert _offsets(tmp_path) == [0, 1]


@pytest.mark.processes
def test_gateway_without_its_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """503 while the folder cannot be written, nothing remembered; then the same messages land, with no gap."""
    with Gateway(tmp_path, TO_TABLE) as gateway:
        assert gateway.post("/v1/half", half("t-0")).json()["queue_offset"] == 0
        os.rename(tmp_path / "half", tmp_path / "away")
        (tmp_path / "half").write_text("no folder")
        lost = gateway.post("/v1/half", half("t-1"))
        assert (lost.status_code, lost.json()["code"]) == (503, "storage_unavailable")
        assert gateway.get("/readyz").status_code == 503
        (tmp_path / "half").unlink()
        os.rename(tmp_path / "away", tmp_path / "half")
        assert gateway.post("/v1/half", half("t-1")).json()["queue_offset"] == 1
        assert gateway.get("/readyz").status_code == 200
        code, said = gateway.stop()
        assert code == 0
        assert [line.split(":")[1] for line in said.splitlines()] == [
            " nothing can be stored at present",
            " messages can be stored again",
        ]
        assert "nothing can be stored at present" in said
    assert _offsets(tmp_path) == [0, 1]
