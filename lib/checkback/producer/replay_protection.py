"""Replay protection: a cache of signed requests. No network, no clock."""

from __future__ import annotations

from hashlib import sha256
from threading import Lock

#: allowed clock skew of a request's timestamp, in seconds: that of Standard Webhooks' library
TOLERANCE_S = 300


class ReplayCache:
    """Remembers up to ``limit`` accepted signed requests. Thread-safe.

    The key is everything signed: webhook-id, timestamp in whole seconds, body. The id alone is not enough: if an
    endpoint did not answer, or a batch is replayed, Checkback sends the same check again, with the same id but a new
    timestamp and signature. That requires the secret: an attacker's replay has the old timestamp.

    A request is evicted once its timestamp would be refused anyway. If the cache is full, the oldest second is evicted
    too, and requests not newer than that are refused from then on: too small a cache shortens the tolerance for old
    requests, but never accepts a replay.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._seconds: dict[int, set[bytes]] = {}
        self._size = 0
        self._floor = -1  # everything up to this second is refused

    def __len__(self) -> int:
        return self._size

    def take(self, webhook_id: str, timestamp: int, body: bytes, now: float) -> bool:
        """True once for each request; False if it was taken before, or may have been."""
        request = sha256(webhook_id.encode() + b"." + body).digest()  # 32 bytes, for any request size
        with self._lock:
            # The signature library refuses timestamps older than the tolerance; one more second, as it reads the clock
            # itself.
            self._forget(int(now) - TOLERANCE_S - 1)
            if timestamp <= self._floor:
                return False
            taken = self._seconds.setdefault(timestamp, set())
            if request in taken:
                return False
            taken.add(request)
            self._size += 1
            while self._size > self._limit:
                self._forget(min(self._seconds))
            return True

    def _forget(self, second: int) -> None:
        """Evict everything up to ``second``."""
        if second <= self._floor:
            return
        self._floor = second
        for old in [old for old in self._seconds if old <= second]:
            self._size -= len(self._seconds.pop(old))
