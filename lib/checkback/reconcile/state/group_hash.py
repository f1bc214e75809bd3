"""The hash that identifies producer groups in a checkpoint: a colliding group could end another's transactions."""

from __future__ import annotations

from enum import Enum


class GroupHash(Enum):
    """The 64-bit hash of a producer group's name.

    XXHASH64, of earlier releases, is fast, but a colliding name can be computed. SHA1 is xxhash64 of the name's SHA-1
    in hexadecimal: finding a name that collides with a given group's takes about 2^64 attempts.
    """

    XXHASH64 = "xxhash64"
    SHA1 = "sha1"


#: that of new checkpoints
GROUP_HASH = GroupHash.SHA1
