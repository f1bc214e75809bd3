"""Verifies check requests: Standard Webhooks' signature, timestamp, and replay protection."""

from __future__ import annotations

import time
from collections.abc import Mapping
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING

from checkback.errors import SettingsError
from checkback.rotated import Rotated
from checkback.signature import Verifier

if TYPE_CHECKING:
    from collections.abc import Collection

    from checkback.rotated import Texts

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


class RefusedError(Exception):
    """A request is refused, with an HTTP status and a title without any of its content."""

    def __init__(self, status: int, title: str) -> None:
        super().__init__(status, title)
        self.status, self.title = status, title


class SignatureVerifier:
    """Verifies requests against the groups' secrets. Thread-safe.

    ``secret``: base64, optionally prefixed with ``whsec_``, or two of them, or ``file:PATH`` of such a text
    (`checkback.rotated`), for all groups; or group -> secret; or None to accept unsigned checks. ``replays``: number of
    requests remembered. Raises SettingsError for an invalid or missing secret, which is never quoted.
    """

    def __init__(self, secret: str | Mapping[str, str] | None, groups: Collection[str], replays: int) -> None:
        self._groups = frozenset(groups)
        self._verifiers = None if secret is None else Rotated(_of(secret, groups), "secret of {}", _verifiers, Verifier)
        self._replays = ReplayCache(replays)

    @property
    def signed(self) -> bool:
        """Are unsigned checks refused?"""
        return self._verifiers is not None

    def verify(self, headers: Mapping[str, str], body: bytes) -> frozenset[str]:
        """The groups whose secret the request is signed with.

        ``headers``: by lower-case name. Raises RefusedError, 401, if there is none, or the timestamp is more than five
        minutes off.
        """
        if self._verifiers is None:
            return self._groups
        verifiers = self._verifiers.current.items()
        groups = frozenset(group for group, verifier in verifiers if verifier.is_genuine(headers, body))
        if not groups:
            raise RefusedError(401, "not signed, or signed more than five minutes ago")
        return groups

    def take(self, headers: Mapping[str, str], body: bytes) -> None:
        """Accept a verified request once. Raises RefusedError, 409, if it is a replay."""
        if self._verifiers is None:
            return
        timestamp = int(headers["webhook-timestamp"])
        if not self._replays.take(headers["webhook-id"], timestamp, body, time.time()):
            raise RefusedError(409, "this request is a replay")


def _of(secret: str | Mapping[str, str], groups: Collection[str]) -> dict[str, str]:
    """Each group's secret. Raises SettingsError if one has none."""
    if isinstance(secret, str):
        return dict.fromkeys(groups, secret)
    for group in groups:
        if secret.get(group) is None:
            raise SettingsError(f"group {group} has no secret", "secret", "give each group one, or None for all")
    return {group: secret[group] for group in groups}


def _verifiers(secrets: Texts) -> dict[str, Verifier]:
    return {group: Verifier(text, f"secret of {group}") for group, text in secrets.items()}
