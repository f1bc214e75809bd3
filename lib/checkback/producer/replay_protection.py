"""Which signed requests were there before: the memory against replays. No network, no clock."""

from __future__ import annotations

from hashlib import sha256
from threading import Lock

#: seconds that a request's timestamp may be off: Standard Webhooks' own, that of its library
TOLERANCE_S = 300


class ReplayCache:
    """Remembers the signed requests that were taken, at most ``limit`` of them; safe to use from many threads.

    What tells one from another is all that is signed: webhook-id, timestamp in whole seconds, body. The id alone will
    not do: Checkback sends the same check again, under the same id, when an endpoint did not answer or a batch is done
    again, and signs it anew. Nobody without the secret can do that: whoever plays a request again has its timestamp.

    A request is forgotten when its timestamp would be refused anyway. When the memory is full the oldest second is
    forgotten too, and what is not newer than it is refused from then on: too little memory makes the endpoint less
    patient with old requests, never blind to a replay.
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
        """True once for each request; False when it was there, or might have been."""
        request = sha256(webhook_id.encode() + b"." + body).digest()  # 32 bytes each, whatever is sent
        with self._lock:
            # The signature library refuses what is older than the tolerance; one second more, for its own clock.
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
        """Forget everything up to ``second``."""
        if second <= self._floor:
            return
        self._floor = second
        for old in [old for old in self._seconds if old <= second]:
            self._size -= len(self._seconds.pop(old))
