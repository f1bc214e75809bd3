"""Folders by the system and by Hadoop's client: the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.connect.session import SparkSession as ConnectSession

from checkback import folders
from checkback.errors import StorageError
from checkback.folders import _ByHadoop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["by the system", "by Hadoop"])
def session(spark: SparkSession, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Hadoop's client takes paths of this machine, too."""
    if request.param == "by Hadoop":
        monkeypatch.setattr(folders, "_files", _ByHadoop)
    return spark


def test_folders_are_made_moved_and_deleted(session: SparkSession, tmp_path: Path) -> None:
    one, two = f"{tmp_path}/a|%b/one", f"{tmp_path}/a|%b/two"
    assert folders.names(session, one) == []
    assert not folders.exists(session, one)
    assert not folders.move(session, one, two)
    folders.delete(session, one)
    folders.make(session, f"{one}/c")
    folders.make(session, f"{one}/c")
    Path(one, "d.txt").write_text("é\n", "utf-8")
    assert sorted(folders.names(session, one)) == ["c", "d.txt"]
    assert folders.text(session, f"{one}/d.txt") == "é\n"
    assert folders.exists(session, f"{one}/d.txt")
    assert folders.move(session, one, two)
    assert not folders.exists(session, one)
    folders.make(session, one)
    with pytest.raises(StorageError, match="that is there already"):
        folders.move(session, one, two)
    folders.delete(session, two)
    assert folders.names(session, f"{tmp_path}/a|%b") == ["one"]


def test_what_cannot_be_read_is_told(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        folders.text(session, f"{tmp_path}/none")
    Path(tmp_path, "file").write_text("")
    with pytest.raises(StorageError, match="cannot be changed"):
        folders.make(session, f"{tmp_path}/file/below")


def test_connect_needs_no_jvm() -> None:
    """A URI that Arrow does not know is refused with what to do."""
    session: Any = object.__new__(ConnectSession)  # no server needed
    assert not folders.exists(session, "/no/such/place")
    assert not folders.exists(session, "/Volumes/no/such/place")
    with pytest.raises(StorageError, match="on Spark Connect this kind of folder cannot be looked into"):
        folders.exists(session, "dbfs:/x")
