"""The folder of the checkpoints, on whatever file system Spark keeps it: moved and deleted through Hadoop's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from checkback.errors import StorageError
from checkback.stopping import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folder:
    """A folder, and folders in it by their names. Needs a session with a JVM of its own, not Spark Connect's."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._place = place
        self._files = self._path(place).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def exists(self, name: str) -> bool:
        """Is there such a folder? Raises StorageError."""
        try:
            return bool(self._files.exists(self._in(name)))
        except Py4JJavaError as error:
            raise StorageError(f"cannot be read: {one_line(error)}", f"{self._place}/{name}") from error

    def make(self, name: str) -> None:
        """Make a folder, unless it is there. Raises StorageError."""
        try:
            self._files.mkdirs(self._in(name))
        except Py4JJavaError as error:
            raise StorageError(f"cannot be made: {one_line(error)}", f"{self._place}/{name}") from error

    def delete(self, name: str) -> None:
        """Delete a folder, if it is there. Raises StorageError."""
        try:
            self._files.delete(self._in(name), True)
        except Py4JJavaError as error:
            raise StorageError(f"cannot be deleted: {one_line(error)}", f"{self._place}/{name}") from error

    def move(self, name: str, to: str) -> bool:
        """Give a folder another name; False when it is not there. Raises StorageError."""
        try:
            if not self._files.exists(self._in(name)):
                return False
            moved = self._files.rename(self._in(name), self._in(to))
        except Py4JJavaError as error:
            raise StorageError(f"cannot be moved: {one_line(error)}", f"{self._place}/{name}") from error
        if not moved:
            raise StorageError(f"cannot be moved to {to}", f"{self._place}/{name}", "move it by hand")
        return True

    def _in(self, name: str) -> Any:
        return self._path(f"{self._place}/{name}")
