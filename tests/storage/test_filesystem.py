"""Folders by the system and by Hadoop's client: the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
from pyspark.sql.connect.session import SparkSession as ConnectSession

from checkback.errors import StorageError
from checkback.storage.files import filesystem
from checkback.storage.files.filesystem import _ByHadoop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.storage.tables import Tables


@pytest.fixture(params=["by the system", "by Hadoop"])
def session(spark: SparkSession, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Hadoop's client takes paths of this machine, too."""
    if request.param == "by Hadoop":
        monkeypatch.setattr(filesystem, "_files", lambda spark, place, **_: _ByHadoop(spark, place))
    return spark


def test_folders_are_made_moved_and_deleted(session: SparkSession, tmp_path: Path) -> None:
    one, two = f"{tmp_path}/a|%b/one", f"{tmp_path}/a|%b/two"
    assert filesystem.names(session, one) == []
    assert not filesystem.exists(session, one)
    assert not filesystem.move(session, one, two)
    filesystem.delete(session, one)
    filesystem.make(session, f"{one}/c")
    filesystem.make(session, f"{one}/c")
    Path(one, "d.txt").write_text("é\n", "utf-8")
    assert sorted(filesystem.names(session, one)) == ["c", "d.txt"]
    assert filesystem.text(session, f"{one}/d.txt") == "é\n"
    assert filesystem.exists(session, f"{one}/d.txt")
    assert filesystem.move(session, one, two)
    assert not filesystem.exists(session, one)
    filesystem.make(session, one)
    with pytest.raises(StorageError, match="it exists"):
        filesystem.move(session, one, two)
    filesystem.delete(session, two)
    assert filesystem.names(session, f"{tmp_path}/a|%b") == ["one"]


def test_what_cannot_be_read_is_told(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        filesystem.text(session, f"{tmp_path}/none")
    Path(tmp_path, "file").write_text("")
    with pytest.raises(StorageError, match="cannot be changed"):
        filesystem.make(session, f"{tmp_path}/file/below")


@pytest.mark.slow
def test_folders_of_an_object_store_have_no_markers_of_s3a(s3: Tables, s3_port: int) -> None:
    """Which a checkpoint there has. With Spark Connect nothing but the store's client moves it."""
    session: Any = object.__new__(ConnectSession)
    folder = f"{s3.root}/checkpoint"
    for marker in ("", "offsets/", "state/0/"):
        key = f"{folder.partition('://')[2]}/{marker}"
        requests.put(f"http://127.0.0.1:{s3_port}/{key}", timeout=60).raise_for_status()
    assert not filesystem.exists(session, folder)
    filesystem.write(session, f"{folder}/offsets/0", "v1")
    filesystem.write(session, f"{folder}/metadata", "")
    aside = filesystem.put_aside(session, folder)
    assert aside is not None
    assert not filesystem.exists(session, folder)
    assert sorted(filesystem.names(session, aside)) == ["metadata", "offsets"]
    assert filesystem.text(session, f"{aside}/offsets/0") == "v1"
    filesystem.delete(session, aside)
    assert not filesystem.exists(session, aside)


def test_connect_needs_no_jvm() -> None:
    """A URI of no object store is refused with what to do."""
    session: Any = object.__new__(ConnectSession)  # no server needed
    assert not filesystem.exists(session, "/no/such/place")
    assert not filesystem.exists(session, "/Volumes/no/such/place")
    with pytest.raises(StorageError, match="on Spark Connect this kind of folder cannot be listed"):
        filesystem.exists(session, "dbfs:/x")
