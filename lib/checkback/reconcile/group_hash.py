"""The hash by which a checkpoint tells producer groups apart: a name that collides could end others' transactions."""

from __future__ import annotations

from enum import Enum


class GroupHash(Enum):
    """The function that makes 64 bits of a producer group's name.

    XXHASH64, of a release before, is fast, but whoever may choose names can compute one that collides with another
    group's. SHA1 is xxhash64 of the name's SHA-1 in hexadecimal: a name that collides is only found by trying 2^64.
    """

    XXHASH64 = "xxhash64"
    SHA1 = "sha1"


#: what a new checkpoint is begun with
GROUP_HASH = GroupHash.SHA1
