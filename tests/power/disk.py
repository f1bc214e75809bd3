"""A disk that forgets what was not flushed: what processes did to a folder, and what a power cut may leave of it.

By POSIX a file's content is on the disk once the file was flushed, and a name once its folder was. Of the rest a power
cut leaves what it likes: a file that is empty, cut off, full of zeros or whole, a new name or the old one. Here the
deeds in a folder since its last flush are done or not, each for itself (as POSIX allows) or only the first of them (as
file systems with a journal do).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from random import Random

_HEAD = struct.Struct("=cQqIII")


@dataclass(frozen=True)
class Note:
    """A line of the journal (`recorder.c`); kind ``!`` is a mark of the test's own, its text in ``data``."""

    kind: str
    inode: int
    offset: int
    path: str
    other: str
    data: bytes


def read_journal(file: Path) -> list[Note]:
    """All notes, in the order of the deeds."""
    content, notes, start = file.read_bytes(), [], 0
    while start + _HEAD.size <= len(content):
        kind, inode, offset, path, other, data = _HEAD.unpack_from(content, start)
        ends = [start + _HEAD.size]
        for length in (path, other, data):
            ends.append(ends[-1] + length)
        parts = [content[one:two] for one, two in pairwise(ends)]
        notes.append(Note(kind.decode(), inode, offset, parts[0].decode(), parts[1].decode(), parts[2]))
        start = ends[-1]
    return notes


def mark(journal: Path, text: str) -> None:
    """Note what the test knows at this moment, as that a message was acknowledged."""
    data = text.encode()
    descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, _HEAD.pack(b"!", 0, 0, 0, 0, len(data)) + data)
    finally:
        os.close(descriptor)


@dataclass(eq=False)
class File:
    """``flushed``: what of it is on the disk; None = it never was. ``since``: deeds after that, see `_done`."""

    content: bytearray = field(default_factory=bytearray)
    flushed: bytes | None = None
    since: list[tuple[int, bytes | None]] = field(default_factory=list)

    def do(self, offset: int, data: bytes | None) -> None:
        """Write there, or with None cut off there."""
        self.since.append((offset, data))
        _done(self.content, offset, data)

    def flush(self) -> None:
        """The file was flushed."""
        self.flushed, self.since = bytes(self.content), []

    def left(self, random: Random) -> bytes:
        """What a power cut leaves: of what was flushed, all that was not written to since."""
        now = bytes(self.content)
        if now == self.flushed:
            return now
        if self.flushed is None:
            return random.choice((b"", now[: random.randrange(len(now) + 1)], b"\0" * len(now), now))
        left, likely = bytearray(self.flushed), random.choice((0.0, 0.5, 0.9))
        for offset, data in self.since:
            if random.random() < likely:
                part = data and random.choice((data, data, data[: random.randrange(len(data))], b"\0" * len(data)))
                _done(left, offset, part)
        return bytes(left)


def _done(content: bytearray, offset: int, data: bytes | None) -> None:
    """Write at an offset, or with None cut off there; the content is as long as that at least."""
    content.extend(bytes(max(0, offset - len(content))))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


@dataclass(eq=False)
class Folder:
    """``flushed``: the names that are on the disk; ``since``: deeds after that, each a few names and what they name."""

    names: dict[str, File | Folder] = field(default_factory=dict)
    flushed: dict[str, File | Folder] = field(default_factory=dict)
    since: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def do(self, names: dict[str, File | Folder | None]) -> None:
        """Give names, or with None take them away."""
        self.since.append(names)
        _give(self.names, names)

    def flush(self) -> None:
        """The folder was flushed."""
        self.flushed, self.since = dict(self.names), []

    def left(self, random: Random) -> dict[str, File | Folder]:
        """The names that a power cut leaves."""
        left = dict(self.flushed)
        if random.random() < 0.3:
            done = self.since[: random.randrange(len(self.since) + 1)]
        else:
            likely = random.choice((0.1, 0.5, 0.9))
            done = [deed for deed in self.since if random.random() < likely]
        for deed in done:
            _give(left, deed)
        return left


class Disk:
    """A folder and those below, as they are and as they are on the disk."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.top = Folder()
        self._files: dict[int, File] = {}

    def apply(self, note: Note) -> None:
        """Do what a note says."""
        match note.kind:  # a mark of the test is no deed
            case "c":
                folder, name = self._at(note.path)
                there = folder.names.get(name)
                if not isinstance(there, File) or self._files.get(note.inode) is not there:
                    self._files[note.inode] = file = File()
                    folder.do({name: file})
            case "t":
                self._files[note.inode].do(note.offset, None)
            case "w":
                self._files[note.inode].do(note.offset, note.data)
            case "s":
                self._files[note.inode].flush()
            case "S":
                self._folder(note.path).flush()
            case "m":
                folder, name = self._at(note.path)
                folder.do({name: Folder()})
            case "u" | "d":
                folder, name = self._at(note.path)
                folder.do({name: None})
            case "l":
                folder, name = self._at(note.other)
                source, old = self._at(note.path)
                folder.do({name: source.names[old]})
            case "r":
                source, old = self._at(note.path)
                folder, name = self._at(note.other)
                moved = source.names[old]
                if source is folder:
                    folder.do({old: None, name: moved})
                else:
                    folder.do({name: moved})
                    source.do({old: None})

    def cut(self, place: Path, random: Random) -> None:
        """Write what a power cut leaves into a folder that is not there yet."""
        _write(self.top, place, lambda folder: folder.left(random), lambda file: file.left(random))

    def whole(self) -> dict[str, bytes]:
        """All files as they are, by their path."""
        return dict(_walk(self.top, ""))

    def _folder(self, path: str) -> Folder:
        folder = self.top
        for name in path[len(self._root) :].strip("/").split("/"):
            if name:
                below = folder.names[name]
                assert isinstance(below, Folder), path
                folder = below
        return folder

    def _at(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        return self._folder(above), name


def _give(to: dict[str, File | Folder], names: dict[str, File | Folder | None]) -> None:
    for name, what in names.items():
        if what is None:
            to.pop(name, None)
        else:
            to[name] = what


def _write(folder: Folder, place: Path, names, content) -> None:  # type: ignore[no-untyped-def]
    place.mkdir()
    for name, what in names(folder).items():
        if isinstance(what, Folder):
            _write(what, place / name, names, content)
        else:
            (place / name).write_bytes(content(what))


def _walk(folder: Folder, path: str) -> Iterator[tuple[str, bytes]]:
    for name, what in folder.names.items():
        if isinstance(what, Folder):
            yield from _walk(what, f"{path}/{name}")
        else:
            yield f"{path}/{name}", bytes(what.content)
