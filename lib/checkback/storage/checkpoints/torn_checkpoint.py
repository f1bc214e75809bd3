"""Crash recovery of a query's checkpoint: torn files of an uncommitted batch are removed before the query starts.

Spark writes a checkpoint without flushing it. `fsync.QueryFlush` ensures that all of a batch is durable before any
table has rows of it, and before Spark writes its commit log entry. Torn or missing files therefore belong to a batch
of which no table has anything: the next start reads its input again, as if it had never begun. Spark itself would fail
on an empty file, or load a truncated state.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.storage.checkpoints.checkpoint import Batch, parse_batch, parse_metadata
from checkback.storage.files.fsync import flush_folder
from checkback.storage.files.log_files import versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_log = logging.getLogger(__name__)

#: state after a batch (RocksDBFileManager), numbered by the next batch
_STATE = re.compile(r"\.?([0-9]+)(?:_[0-9a-f-]+)?\.(?:changelog|zip)(?:\.crc)?")
#: state metadata and schema files, written by the first batch of a run or when the state's schema changes
_ABOUT = re.compile(r"\.?([0-9]+)(?:_[0-9a-f-]+)?(?:\.crc)?")
#: temporary name, before the rename (CheckpointFileManager.generateTempPath)
_TEMPORARY = re.compile(r"\.[0-9]+\.[0-9a-f-]{36}(?:\.TID[0-9]+)?\.tmp")
_ENTRY = re.compile(r"([0-9]+)(?:\.compact)?")
_BEGINS = b"crc\0"  # org.apache.hadoop.fs.ChecksumFs
_CHUNK = 512


def remove_unfinished(place: str, sources: Sequence[str], in_tables: Callable[[str, int], bool]) -> None:
    """Remove the files of an uncommitted, torn batch from the checkpoint in a local folder.

    ``sources``: folders of the query's source tables, in its order. ``in_tables``: tells whether any table has a
    commit of the query id's batch; if so, the batch stays in the offset log. No query may be running on the checkpoint.
    Raises StorageError.
    """
    if not os.path.isdir(place):
        return
    try:
        gone = list(_remove(place, sources, in_tables))
        for folder in {*map(os.path.dirname, gone)}:
            flush_folder(folder)
        # Not worth a warning: state of an unfinished batch remains after every crash, as do lone checksums.
        torn = [path for path in gone if not path.startswith(f"{place}/state/") and not path.endswith((".crc", ".tmp"))]
        if torn:
            _log.warning("%s: removed torn files, as after a power cut: %s", place, _listed(place, torn))
    except OSError as error:
        raise StorageError(
            f"cannot be repaired: {error.strerror}", place, "check the folder and its permissions, then start again"
        ) from error


def _remove(place: str, sources: Sequence[str], in_tables: Callable[[str, int], bool]) -> Iterator[str]:
    done = [number for number in _numbers(f"{place}/commits") if not _is_torn(f"{place}/commits/{number}")]
    torn = [number for number in _numbers(f"{place}/commits") if number not in done]
    query_id = _query_id(place)
    if query_id is None:
        # metadata is flushed before any table has the first batch. Our own files may be older than Spark's.
        begun_by_spark = any(os.path.exists(f"{place}/{name}") for name in ("metadata", "offsets", "sources", "state"))
        if begun_by_spark and not done and not torn:
            aside = f"{place}.torn-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
            os.rename(place, aside)
            flush_folder(os.path.dirname(place))
            _log.warning("%s: the checkpoint has no batch; moved to %s", place, aside)
        return
    # Without its commit log entry Spark replays the last batch, a no-op: every table has it already.
    yield from _files(f"{place}/commits/{max(torn)}") if torn and max(torn) > max(done, default=-1) else ()
    begun = max(_numbers(f"{place}/offsets"), default=-1)
    if begun > max(done, default=-1) and _is_nothing(place, begun, sources) and not in_tables(query_id, begun):
        yield from _files(f"{place}/offsets/{begun}")
        begun = max(_numbers(f"{place}/offsets"), default=-1)
    following = begun + 1 if begun in done else max(begun, 0)
    yield from _of_sources(place, begun)
    yield from _of_state(place, following)
    for folder in (f"{place}/offsets", f"{place}/commits"):
        yield from _checksums(folder)
        yield from _temporary(folder)


def _query_id(place: str) -> str | None:
    try:
        with open(f"{place}/metadata", encoding="utf-8") as file:
            return parse_metadata(file.read(), place)
    except (FileNotFoundError, UnicodeDecodeError, StorageError):
        return None


def _batch(place: str, number: int) -> Batch | None:
    """The batch from the offset log; None if its entry is torn."""
    try:
        with open(f"{place}/offsets/{number}", encoding="utf-8") as file:
            return parse_batch(number, file.read(), place)
    except (UnicodeDecodeError, StorageError):
        return None


def _is_nothing(place: str, number: int, sources: Sequence[str]) -> bool:
    """True if a batch's offset log entry is torn, or refers to offsets its sources do not have."""
    path = f"{place}/offsets/{number}"
    if _is_torn(path):
        return True
    if not sources:
        return any(not _entry(place, source, name) for source, name in _log_offsets(path))
    batch = _batch(place, number)
    if batch is None or len(batch.positions) != len(sources):
        return True
    for position, source in zip(batch.positions, sources, strict=True):
        newest = max(versions(source), default=-1)
        if position is not None and position.version > newest + (not position.starting):
            return True
    return False


def _log_offsets(path: str) -> Iterator[tuple[int, int]]:
    """(source, entry) for each file source, by its index in the query: the batch's end offset in the source's log."""
    with open(path, encoding="utf-8") as lines:
        for source, line in enumerate(lines.read().splitlines()[2:]):
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and "logOffset" in found:
                    yield source, int(found["logOffset"])


def _entry(place: str, source: int, number: int) -> bool:
    paths = [f"{place}/sources/{source}/{number}{kind}" for kind in ("", ".compact")]
    return number < 0 or any(os.path.exists(path) and not _is_torn(path) for path in paths)


def _of_sources(place: str, begun: int) -> Iterator[str]:
    """Remove torn entries of the sources' logs that no batch refers to; yields them."""
    named = dict(_log_offsets(f"{place}/offsets/{begun}")) if begun >= 0 else {}
    for source in _numbers(f"{place}/sources"):
        folder = f"{place}/sources/{source}"
        for name in os.listdir(folder):
            match = _ENTRY.fullmatch(name)
            if match and int(match[1]) > named.get(source, -1) and _is_torn(f"{folder}/{name}"):
                yield from _files(f"{folder}/{name}")
        yield from _checksums(folder)


def _of_state(place: str, following: int) -> Iterator[str]:
    """Remove state written by the batch ``following``, the next to run, and later ones; yields the files."""
    for folder, _, names in os.walk(f"{place}/state"):
        about = "/_metadata" in folder or "/_stateSchema" in folder
        for name in names:
            match = (_ABOUT if about else _STATE).fullmatch(name)
            if match and int(match[1]) + about > following:
                os.remove(f"{folder}/{name}")
                yield f"{folder}/{name}"


def _files(path: str) -> Iterator[str]:
    """Remove a file and its checksum; yields them."""
    for name in (path, _checksum_of(path)):
        with suppress(FileNotFoundError):
            os.remove(name)
            yield name


def _checksums(folder: str) -> Iterator[str]:
    """Remove checksums that are torn or whose file is missing, as a new file would not match; yields them."""
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.startswith(".") and name.endswith(".crc"):
            path = f"{folder}/{name[1:-4]}"
            if not os.path.exists(path) or _known(path) is None:
                os.remove(f"{folder}/{name}")
                yield f"{folder}/{name}"


def _temporary(folder: str) -> Iterator[str]:
    """Remove temporary files, as a folder must be empty for the first batch; yields them."""
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if _TEMPORARY.fullmatch(name):
            os.remove(f"{folder}/{name}")
            yield f"{folder}/{name}"


def _is_torn(path: str) -> bool:
    """True if a Spark log file fails its checksum or, without one, is not a version line followed by JSON lines."""
    with open(path, "rb") as file:
        content = file.read()
    if _known(path) is not None:
        return not _fits(content, _known(path) or b"")
    try:
        lines = content.decode().splitlines()[1:]
        for line in lines:
            if line != "-":
                json.loads(line)
    except ValueError:
        return True
    return not lines


def _known(path: str) -> bytes | None:
    """The CRCs in a file's checksum file; None if it is missing or torn itself."""
    with suppress(FileNotFoundError), open(_checksum_of(path), "rb") as file:
        content = file.read()
        if content[:8] == _BEGINS + _CHUNK.to_bytes(4, "big") and len(content) % 4 == 0 and len(content) > 8:
            return content[8:]
    return None


def _fits(content: bytes, known: bytes) -> bool:
    chunks = (content[start : start + _CHUNK] for start in range(0, len(content), _CHUNK))
    return b"".join(zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks) == known


def _checksum_of(path: str) -> str:
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.crc")


def _numbers(folder: str) -> list[int]:
    return [int(name) for name in os.listdir(folder) if name.isdecimal()] if os.path.isdir(folder) else []


def _listed(place: str, paths: Sequence[str]) -> str:
    names = sorted(os.path.relpath(path, place) for path in paths)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
