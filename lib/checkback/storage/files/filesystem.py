"""Folders and small files in Spark's file systems, accessed from the driver.

Paths (local or mounted) are accessed through the OS, and places in the tables' object store through its client
(`object_store`): neither needs a session. Other URIs are accessed through Hadoop's client, with Spark's settings and
credentials; Spark Connect has none, so the object store's client is used, with this process's credentials.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol

import obstore

from checkback.errors import StorageError, one_line
from checkback.storage.dataframes import is_connect
from checkback.storage.files import table_files
from checkback.storage.files.fsync import flush_file, flush_folder, flush_parents
from checkback.storage.files.object_store import canonical, is_registered, open_store, os_errors
from checkback.storage.files.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


#: makes an empty folder of an object store: an object, whose name Spark and Delta ignore
_FOLDER = "_folder"
#: between the name of what was put aside and when that was
_ASIDE, _STAMP = ".before-", "%Y%m%dT%H%M%SZ"


class _Files(Protocol):
    """A path in a file system."""

    def names(self) -> list[str]: ...
    def text(self) -> str: ...
    def exists(self) -> bool: ...
    def make(self) -> None: ...
    def delete(self) -> None: ...
    def delete_file(self) -> None: ...
    def write(self, content: bytes) -> None: ...
    def move(self, to: str) -> None: ...


def names(spark: SparkSession | None, folder: str) -> list[str]:
    """The names in a folder; empty if it does not exist. Raises StorageError."""
    with _told("read", folder), suppress(FileNotFoundError):
        return _files(spark, folder).names()
    return []


def text(spark: SparkSession | None, file: str) -> str:
    """The text of a small file. Raises StorageError."""
    with _told("read", file):
        return _files(spark, file).text()


def exists(spark: SparkSession | None, place: str) -> bool:
    """True if the file or folder exists. Raises StorageError."""
    with _told("read", place):
        return _files(spark, place).exists()


def make(spark: SparkSession, folder: str) -> None:
    """Create a folder if it does not exist. Raises StorageError."""
    with _told("changed", folder):
        _files(spark, folder).make()


def delete(spark: SparkSession | None, folder: str) -> None:
    """Delete a folder recursively, if it exists. Raises StorageError."""
    with _told("changed", folder):
        files = _files(spark, folder, whole=True)
        if files.exists():
            files.delete()


def delete_file(spark: SparkSession, file: str) -> None:
    """Delete a file, if it exists. Raises StorageError."""
    with _told("changed", file):
        files = _files(spark, file)
        if files.exists():
            files.delete_file()


def write(spark: SparkSession | None, file: str, text: str) -> None:
    """Create or overwrite a small file, and its parent folders. Raises StorageError.

    In a local folder the write is atomic and durable.
    """
    with _told("written", file):
        _files(spark, file).write(text.encode())


def move(spark: SparkSession, folder: str, to: str) -> bool:
    """Move a folder; False if it does not exist. Raises StorageError."""
    with _told("changed", folder):
        files = _files(spark, folder, whole=True)
        if not files.exists():
            return False
        if _files(spark, to, whole=True).exists():
            raise StorageError(f"cannot be moved to {to}: it exists", folder, "move it by hand")
        files.move(to)
        return True


def put_aside(spark: SparkSession, folder: str) -> str | None:
    """Rename a folder, adding a timestamp; returns the new path, None if it did not exist. Raises StorageError."""
    aside = f"{folder}{_ASIDE}{time.strftime(_STAMP, time.gmtime())}"
    return aside if move(spark, folder, aside) else None


def delete_aside(spark: SparkSession | None, folder: str, before: datetime) -> None:
    """Delete what was put aside in a folder before a time. Raises StorageError."""
    for name in names(spark, folder):
        _, _, stamp = name.rpartition(_ASIDE)
        with suppress(ValueError):  # another name
            if datetime.strptime(stamp, _STAMP).replace(tzinfo=timezone.utc) < before:
                delete(spark, f"{folder}/{name}")


def needs_spark(place: str) -> bool:
    """True if only Spark can read the place: it is neither on this machine nor in the tables' object store."""
    return local_path(place) is None and not is_registered(place)


@contextmanager
def _told(what: str, place: str) -> Iterator[None]:
    try:
        yield
    except _errors() as error:
        raise StorageError(f"cannot be {what}: {one_line(error)}", place) from error


def _errors() -> tuple[type[Exception], ...]:
    """With Py4J's, unless Spark, which brings it, is not installed or not imported."""
    py4j = sys.modules.get("py4j.protocol")
    return (OSError, UnicodeDecodeError) if py4j is None else (OSError, UnicodeDecodeError, py4j.Py4JJavaError)


def _files(spark: SparkSession | None, place: str, whole: bool = False) -> _Files:
    """``whole``: the folder is moved or deleted: in an object store by Hadoop, which knows its own folder markers."""
    path = local_path(place) or (place if place.startswith("/") else None)
    if path is not None:
        return _Local(path)
    uri = canonical(place)
    by_hadoop = spark is not None and not is_connect(spark)
    if uri is not None and (is_registered(uri) or not by_hadoop) and not (whole and by_hadoop):
        return _InObjectStore(uri)
    if spark is None:
        raise StorageError("is not of this machine, and there is no Spark to read it", place)
    if not is_connect(spark):
        return _ByHadoop(spark, place)
    raise StorageError(
        "on Spark Connect this kind of folder cannot be listed",
        place,
        "choose storage.checkpoints under a path, as /Volumes/..., or an s3://, gs:// or abfss:// URI",
    )


class _Local:
    """A local path. All changes are flushed to disk; they are rare."""

    def __init__(self, path: str) -> None:
        self._path = path

    def names(self) -> list[str]:
        return table_files.local_names(self._path)

    def text(self) -> str:
        with open(self._path, encoding="utf-8") as file:
            return file.read()

    def exists(self) -> bool:
        return os.path.exists(self._path)

    def make(self) -> None:
        os.makedirs(self._path, exist_ok=True)
        flush_parents(self._path)

    def delete(self) -> None:
        shutil.rmtree(self._path)
        flush_folder(os.path.dirname(self._path))

    def delete_file(self) -> None:
        os.remove(self._path)
        flush_folder(os.path.dirname(self._path))

    def write(self, content: bytes) -> None:
        """Write to a temporary name and rename: atomic."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with open(f"{self._path}.new", "wb") as file:
            file.write(content)
        flush_file(f"{self._path}.new")
        os.replace(f"{self._path}.new", self._path)
        flush_folder(os.path.dirname(self._path))

    def move(self, to: str) -> None:
        target = local_path(to) or to
        os.rename(self._path, target)
        for place in (self._path, target):
            flush_folder(os.path.dirname(place))


class _InObjectStore:
    """A URI in an object store. A folder is there as long as an object is below it.

    Not a folder marker of S3A's, which the store's client lists without the slash that its name ends with, and cannot
    touch: it stays behind.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._store, self._key = open_store(uri)

    def names(self) -> list[str]:
        return table_files.names(self._uri)

    def text(self) -> str:
        return table_files.read(self._uri).decode()

    def exists(self) -> bool:
        return table_files.exists(self._uri) or any(True for _ in self._below())

    def make(self) -> None:
        table_files.write(f"{self._uri}/{_FOLDER}", b"")

    def delete(self) -> None:
        with os_errors(self._uri):
            obstore.delete(self._store, list(self._below()))

    def delete_file(self) -> None:
        table_files.remove(self._uri)

    def write(self, content: bytes) -> None:
        table_files.write(self._uri, content)

    def move(self, to: str) -> None:
        """Copy, then delete: not atomic. Nothing else uses a folder that is moved."""
        target = open_store(canonical(to) or to)[1]
        paths = list(self._below())
        with os_errors(self._uri):
            for path in paths:
                obstore.copy(self._store, path, target + path[len(self._key) :])
            obstore.delete(self._store, paths)

    def _below(self) -> Iterator[str]:
        with os_errors(self._uri):
            for file in (file for piece in obstore.list(self._store, f"{self._key}/") for file in piece):
                if file["size"] or table_files.exists(f"{self._uri}{file['path'][len(self._key) :]}"):
                    yield file["path"]


class _ByHadoop:
    """A path in one of Hadoop's file systems."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._path = jvm.org.apache.hadoop.fs.Path(place)
        self._system = self._path.getFileSystem(spark._jsc.hadoopConfiguration())

    def names(self) -> list[str]:
        found = self._system.listStatus(self._path) if self.exists() else []
        return [status.getPath().getName() for status in found]

    def text(self) -> str:
        stream = self._system.open(self._path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def exists(self) -> bool:
        return bool(self._system.exists(self._path))

    def make(self) -> None:
        self._system.mkdirs(self._path)

    def delete(self) -> None:
        self._system.delete(self._path, True)

    def delete_file(self) -> None:
        self._system.delete(self._path, False)

    def write(self, content: bytes) -> None:
        stream = self._system.create(self._path, True)
        try:
            stream.write(bytearray(content))
            stream.hsync()
        finally:
            stream.close()

    def move(self, to: str) -> None:
        if not self._system.rename(self._path, self._jvm.org.apache.hadoop.fs.Path(to)):
            raise OSError(f"cannot be moved to {to}")
