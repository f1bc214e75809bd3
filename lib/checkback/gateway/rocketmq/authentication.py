"""Who calls: the client's id, and the groups that its signature stands for.

``MQv2-HMAC-SHA1``: the signature is the HMAC-SHA1 of the header ``x-mq-date-time`` with the secret key, in hexadecimal.
The access key is the group's name, or its setting ``access_key``; the secret key is its token.
"""

from __future__ import annotations

import hmac
import re
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from checkback.gateway.rocketmq.codes import Code, Refusal
from checkback.settings.secrets import tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from checkback.gateway.authentication import Groups
    from checkback.rotated import Texts
    from checkback.settings import Producer

#: a signature is taken so long before and after its time, in seconds
MAX_AGE_S = 15 * 60
#: characters of a client's id
CLIENT_ID_MAX = 512
_AUTHORIZATION = re.compile(
    r"MQv2-HMAC-SHA1 Credential=([^,]*), *SignedHeaders=x-mq-date-time, *Signature=([0-9a-fA-F]{40})", re.IGNORECASE
)
_BASIC = "%Y%m%dT%H%M%SZ"


class Signature(NamedTuple):
    """``value``: of ``date_time``, with a secret key of ``access_key``."""

    access_key: str
    date_time: str
    value: bytes


class Caller(NamedTuple):
    """A client. ``groups``: those that it may act for by its signature; None = all."""

    client_id: str
    groups: Groups
    language: str
    version: str
    signature: Signature | None = None

    @property
    def who(self) -> str:
        """Its id among those of the same credentials: containers of others may have the same one."""
        return self.client_id if self.groups is None else "\0".join((self.client_id, *sorted(self.groups)))


class Credentials:
    """The groups' access and secret keys. If any group has a token, every call needs a signature."""

    def __init__(self, producers: Mapping[str, Producer], clock: Callable[[], float] = time.time) -> None:
        """``clock``: seconds since the epoch. Raises SettingsError."""
        self._clock = clock

        def by_access_key(tokens: Texts) -> dict[str, list[tuple[str, bytes]]]:
            secrets: dict[str, list[tuple[str, bytes]]] = {}
            for group, text in tokens.items():
                of_key = secrets.setdefault(producers[group].access_key or group, [])
                of_key += [(group, token.encode()) for token in text.split()]
            return secrets

        self._secrets = tokens_of(producers, by_access_key)

    def caller(self, metadata: Mapping[str, str]) -> Caller | Refusal:
        """The client that sent these headers, or why it is refused."""
        client_id = metadata.get("x-mq-client-id", "")
        if not client_id:
            return Refusal(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
        if len(client_id) > CLIENT_ID_MAX:
            return Refusal(Code.BAD_REQUEST, f"the client id has more than {CLIENT_ID_MAX} characters")
        signature = _signature(metadata)
        groups = self._groups(signature)
        if isinstance(groups, Refusal):
            return groups
        about = metadata.get("x-mq-language", "")[:32], metadata.get("x-mq-client-version", "")[:32]
        return Caller(client_id, groups, *about, signature)

    @property
    def keys(self) -> object:
        """The keys as they are: another object once they have changed."""
        return self._secrets.current

    def still_hold(self, caller: Caller) -> bool:
        """Does the caller's signature, however old, stand for its groups by the keys as they are?"""
        return caller.groups is None or (
            caller.signature is not None and caller.groups <= self._signed_by(caller.signature)
        )

    def _groups(self, signature: Signature | None) -> Groups | Refusal:
        if not self._secrets.current:
            return None
        if signature is None:
            return Refusal(Code.UNAUTHORIZED, "a signature MQv2-HMAC-SHA1 with an access key is needed")
        if not (groups := self._signed_by(signature)):
            return Refusal(Code.UNAUTHORIZED, "the access key or the signature is not valid")
        if not self._recent(signature.date_time):
            return Refusal(Code.UNAUTHORIZED, f"x-mq-date-time is more than {MAX_AGE_S // 60} minutes from now")
        return groups

    def _signed_by(self, signature: Signature) -> frozenset[str]:
        """The groups with whose keys it is made: all secrets of its access key are compared, each in constant time."""
        return frozenset(
            group
            for group, secret in self._secrets.current.get(signature.access_key, [])
            if hmac.compare_digest(hmac.digest(secret, signature.date_time.encode(), "sha1"), signature.value)
        )

    def _recent(self, date_time: str) -> bool:
        """Is it about now? Python's client signs its local time as if it were UTC: the gateway's is taken, too."""
        now = self._clock()
        local = datetime.fromtimestamp(now).astimezone().utcoffset()
        signed = _seconds(date_time)
        offsets = (0.0, 0.0 if local is None else local.total_seconds())
        return signed is not None and any(abs(signed - offset - now) <= MAX_AGE_S for offset in offsets)


def _signature(metadata: Mapping[str, str]) -> Signature | None:
    signed = _AUTHORIZATION.fullmatch(metadata.get("authorization", ""))
    date_time = metadata.get("x-mq-date-time", "")
    return None if signed is None else Signature(signed[1], date_time, bytes.fromhex(signed[2]))


def _seconds(date_time: str) -> float | None:
    """Seconds since the epoch; None = it is no time."""
    try:
        return datetime.strptime(date_time, _BASIC).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        pass
    try:
        parsed = datetime.fromisoformat(date_time.replace("Z", "+00:00"))
    except ValueError:
        return None
    return None if parsed.tzinfo is None else parsed.timestamp()
