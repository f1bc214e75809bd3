"""Locations of tables and checkpoints: local folders, or URIs of another file system."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from typing import TYPE_CHECKING

from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.settings import Settings

#: what a file system lacks that takes no commit in a folder (`log_store`), and the fix
NO_LINKS = "the file system has no hard links, by which commits are made"
NO_LINKS_FIX = "choose a folder on one that has, as ext4, XFS or NFS"
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
#: object stores mounted as paths
_MOUNTS = ("/Volumes/", "/dbfs/")


def local_path(place: str) -> str | None:
    """The absolute path of a local folder; None for a URI of another file system, or a path on a mounted one.

    The mounts (Databricks' /Volumes and /dbfs) support neither locks nor hard links: Spark writes there.
    """
    scheme, colon, rest = place.partition(":")
    if colon and "/" not in scheme:
        if scheme != "file":
            return None
        place = re.sub("^//[^/]*", "", rest)
    path = os.path.abspath(place)
    return None if path.startswith(_MOUNTS) else path


def for_spark(place: str) -> str:
    """A place as Spark gets it: of a local folder a URI. Hadoop looks for a bare path in ``fs.defaultFS``, as HDFS.

    Nothing is escaped in it: Hadoop's Path takes it as it is.
    """
    path = local_path(place)
    return place if path is None else f"file://{path}"


def storage_check(settings: Settings, origins: Mapping[str, str] | None = None) -> None:
    """Create the local folders of tables and checkpoints and check, before Spark starts, that they are writable.

    Raises SettingsError. URIs of other file systems are left to Spark.
    """
    root = None if settings.storage.catalog else settings.storage.root
    folders = {"storage.root": root, "storage.checkpoints": settings.storage.checkpoints}
    for key, place in folders.items():
        path = local_path(place) if place else None
        if path is None:
            continue
        try:
            os.makedirs(path, exist_ok=True)
            # Write a file instead of checking permissions, which say nothing for root and on network mounts.
            with tempfile.NamedTemporaryFile(dir=path, prefix=".checkback-") as file:
                if key == "storage.root":
                    os.link(file.name, f"{file.name}.link")
                    os.remove(f"{file.name}.link")
        except OSError as error:
            where = f"{key} ({origins[key]})" if origins and key in origins else key
            what = f"cannot write in {path}: {error.strerror}"
            fix = "choose a folder that this user can create and write"
            if lacks_links(error):
                what, fix = f"{path}: {NO_LINKS}", NO_LINKS_FIX
            raise SettingsError(what, where, fix) from error


def lacks_links(error: OSError) -> bool:
    """True if the file system has no hard links: this is its answer to one, which has two names."""
    return error.filename2 is not None and error.errno in _NO_LINKS
