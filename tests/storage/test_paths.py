"""Folders of this machine are known from URIs, and tried before Spark starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkback.errors import SettingsError
from checkback.settings import Settings
from checkback.storage.files.paths import for_spark, local_path, storage_check


def test_storage_check_makes_the_folders(tmp_path: Path) -> None:
    storage = {"root": str(tmp_path / "a/b"), "checkpoints": f"file://{tmp_path}/c"}
    storage_check(Settings.model_validate({"storage": storage}))
    assert (tmp_path / "a/b").is_dir()
    assert (tmp_path / "c").is_dir()
    assert not list((tmp_path / "a/b").iterdir())


def test_storage_check_refuses_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file/below", Path("/proc/none")):
        with pytest.raises(SettingsError) as caught:
            storage_check(Settings.model_validate({"storage": {"root": str(root)}}), {"storage.root": "--set"})
        assert str(caught.value).startswith(f"storage.root (--set): cannot write in {root}: ")


def test_storage_check_leaves_other_file_systems_alone() -> None:
    storage_check(
        Settings.model_validate({"storage": {"root": "s3://no-such-bucket/data", "checkpoints": "abfss://c@a/x"}})
    )


def test_tables_in_a_catalog_need_no_folder(tmp_path: Path) -> None:
    """Only one for the checkpoints."""
    storage = {"catalog": "main", "schema": "s", "root": str(tmp_path / "data"), "checkpoints": str(tmp_path / "c")}
    storage_check(Settings.model_validate({"storage": storage}))
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("/a:b/c", "/a:b/c"),
        ("s3://bucket/x", None),
        ("dbfs:/x", None),
        ("/Volumes/main/checkback/tables", None),
        ("file:///dbfs/x", None),
        ("/data/Volumes/x", "/data/Volumes/x"),
    ],
)
def test_local_path(place: str, path: str | None) -> None:
    """Spark gets it with its scheme, and any other place as it is."""
    assert local_path(place) == path
    assert for_spark(place) == (place if path is None else f"file://{path}")


def test_local_path_of_a_relative_one_is_absolute() -> None:
    assert local_path("./data") == os.path.abspath("data")
