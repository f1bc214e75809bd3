"""Object stores that hold tables: Amazon S3 (and what speaks its protocol), Azure Data Lake, Google Cloud Storage.

A path is a URI of the bucket or container. Options are the configuration keys of the Rust crate object_store, which
delta-rs and obstore share (``aws_endpoint_url``, ``aws_region``, ...); keys that are not given come from the
environment (AWS_ENDPOINT_URL, AWS_REGION, ...), as in all of these stores' tools.
"""

from __future__ import annotations

import io
import os
import posixpath
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast
from urllib.parse import urlsplit

from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from obstore.store import ObjectStore

#: URI schemes, and the one by which places are known here: Hadoop's s3a is S3, too
_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfs": "abfss", "abfss": "abfss"}
#: options of the HTTP client, given with or without the store's prefix; obstore takes them apart from the others
_CLIENT_OPTION = re.compile(
    r"(?:(?:aws|azure|azure_storage|google)_)?(allow_http|allow_invalid_certificates|proxy_url)"
)
#: a bucket or container, and a path that is the same with and without URL encoding
_PLAIN = re.compile(r"[a-z0-9]+://[A-Za-z0-9._@-]+(?:/[A-Za-z0-9._=-]+)*")
_RETRIES: Any = {
    "max_retries": 10,
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=15), "base": 2},
    "retry_timeout": timedelta(minutes=3),
}
#: requests at a time
AT_ONCE = 32
#: attempts at creating an object while the store refuses all that do so at a time, and the longest pause (s)
_CONFLICTS, _PAUSE_S = 20, 0.5
T = TypeVar("T")
R = TypeVar("R")
#: options by root; process-wide, as Hadoop's are: a root has one set of credentials
_options: dict[str, dict[str, str]] = {}


def canonical(place: str) -> str | None:
    """The URI of a place in an object store, as ``s3://bucket/path``; None if it is elsewhere."""
    parts = urlsplit(place)
    scheme = _SCHEMES.get(parts.scheme.lower())
    if scheme is None or not parts.netloc:
        return None
    _, _, path = place.partition("://")[2].partition("/")  # a URI's ? and # are nothing special in it
    return f"{scheme}://{parts.netloc}{posixpath.normpath('/' + path.lstrip('/'))}".rstrip("/")


def register(root: str, options: Mapping[str, str]) -> None:
    """Use these options for all places below the root, in this process."""
    _options[root] = dict(options)


def is_registered(place: str) -> bool:
    """True if the place is below a registered root: then this module's client accesses it."""
    return _root(place) is not None


def options_of(place: str) -> dict[str, str]:
    """The options of a place; empty: those of the environment."""
    root = _root(place)
    return {} if root is None else _options[root]


def _root(place: str) -> str | None:
    above = (root for root in _options if place == root or place.startswith(f"{root}/"))
    return max(above, key=len, default=None)


def check_place(place: str) -> None:
    """Raise SettingsError if its path is not plain, or an option is unknown or has a value of another type."""
    from obstore.exceptions import BaseError

    if not _PLAIN.fullmatch(place):
        raise SettingsError(
            f"{place} has characters that Spark, delta-rs and the store would write in different ways",
            "storage.root",
            "use letters, digits and . _ - = / in the path",
        )
    try:
        open_store(place)
    except BaseError as error:
        found = re.search(r"Configuration key: '([^']*)' is not valid", str(error))  # other messages have the value
        what = f"the object store has no option {found[1]}" if found else f"an option is wrong: {type(error).__name__}"
        raise SettingsError(what, "storage.options", "name it as delta-rs does, as aws_endpoint_url") from None


def open_store(place: str) -> tuple[ObjectStore, str]:
    """The client of the place's bucket, and the place's path in it."""
    parts = urlsplit(place)
    return _store(f"{parts.scheme}://{parts.netloc}", tuple(sorted(options_of(place).items()))), parts.path.lstrip("/")


@lru_cache(maxsize=16)
def _store(bucket: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    from obstore.store import from_url

    config: Any = {}
    client: Any = {}
    for key, value in options:
        match = _CLIENT_OPTION.fullmatch(key.lower())
        if match is None:
            config[key.lower()] = value
        else:
            client[match[1]] = value if match[1] == "proxy_url" else value.lower() in ("1", "true")
    if client and "allow_http" not in client:  # with client options, obstore does not look into the environment
        client["allow_http"] = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
    return from_url(bucket, config=config, client_options=client or None, retry_config=_RETRIES)


@contextmanager
def os_errors(place: str) -> Iterator[None]:
    """Raise obstore's errors as OSError, as a file system does."""
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(str(error).partition("\n")[0]) from error
    except BaseError as error:
        raise OSError(f"{place}: {str(error).partition(chr(10))[0]}") from error


def create(place: str, content: bytes) -> str | None:
    """Create an object that does not exist yet; its ETag. Raises FileExistsError if it exists, OSError.

    S3 refuses (409 ConditionalRequestConflict) while another process writes the object, whose write may fail: there is
    none until it is found, and the request is repeated.
    """
    import obstore

    store, key = open_store(place)
    for attempt in range(1, _CONFLICTS):
        with suppress(FileExistsError), os_errors(place):
            return obstore.put(store, key, content, mode="create")["e_tag"]
        if _is_there(place):
            raise FileExistsError(place)
        time.sleep(random.uniform(0, min(0.02 * attempt, _PAUSE_S)))  # noqa: S311 - spreads the writers
    with os_errors(place):
        return obstore.put(store, key, content, mode="create")["e_tag"]


def _is_there(place: str) -> bool:
    import obstore

    with suppress(FileNotFoundError), os_errors(place):
        obstore.head(*open_store(place))
        return True
    return False


def concurrently(place: str, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """``function`` of each item, in order: if the place is in an object store, some at a time.

    For what takes a request each: one after the other they would take their latency's sum.
    """
    if len(items) < 2 or not is_registered(place):
        yield from map(function, items)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for first in range(0, len(items), AT_ONCE):
            yield from pool.map(function, items[first : first + AT_ONCE])


class ObjectReader(io.RawIOBase):
    """An object as a file: each read is a request for a range. Reads raise OSError."""

    def __init__(self, place: str, size: int) -> None:
        """``size``: of the object, in bytes."""
        self._place = place
        self._store, self._key = open_store(place)
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read; returns it."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, all that are left if negative; empty at the end."""
        import obstore

        end = self._size if size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        with os_errors(self._place):
            found = bytes(obstore.get_range(self._store, self._key, start=self._at, end=end))
        self._at = end
        return found


class ObjectWriter:
    """A writable binary file that becomes an object when it is closed; never closed, it leaves none."""

    def __init__(self, place: str) -> None:
        """Raises OSError if the store cannot be reached."""
        import obstore

        self._place = place
        with os_errors(place):
            self._file = cast("BinaryIO", obstore.open_writer(*open_store(place)))
        self.size = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """Append. Raises OSError."""
        with os_errors(self._place):
            self._file.write(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        """Bytes written."""
        return self.size

    def flush(self) -> None:
        """No-op: an object appears whole."""

    def close(self) -> None:
        """Upload the object. Raises OSError."""
        if not self.closed:
            self.closed = True
            with os_errors(self._place):
                self._file.close()
