"""Transaction ids as RocketMQ's clients get them: the half message's place and names, signed. Pure.

Clients pass the id on unread. It has all that an op needs, so the gateway need not remember it: any gateway of the
tables ends any transaction, at any time. The key is made of the id of the table `half`: all gateways have it, clients
do not, and it lasts longer than a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import NamedTuple

_VERSION = "1"
_APART = "~"
#: before the topic, which has no such character: a handle is no transaction id
_RECALL = "recall/"
_RENAMED = re.compile(rf"{_APART}[0-9a-f]{{16}}\Z")
#: bytes of the signature
_SIGNATURE = 16
#: Longest id, in characters: that of the longest group and message id, whose characters have at most 4 bytes each.
_LONGEST = 8192


class Half(NamedTuple):
    """The half message that an id names. ``message_id``: the transaction id in the tables."""

    queue_id: int
    queue_offset: int
    producer_group: str
    message_id: str

    @property
    def place(self) -> tuple[int, int]:
        """(queue_id, queue_offset)."""
        return self.queue_id, self.queue_offset


def apart(message_id: str, client_id: str) -> str:
    """The transaction id of a message whose message id another client has used.

    Message ids are made of a network card's address, a process id, the second and a number: containers on two machines
    have the same card and process, and so may have the same ids.
    """
    return f"{message_id}{_APART}{hashlib.sha256(client_id.encode()).hexdigest()[:16]}"


def sent_as(transaction_id: str) -> str:
    """The message id that the client has sent."""
    return _RENAMED.sub("", transaction_id)


class TransactionIds:
    """Makes and reads ids. ``table_id``: of `half`."""

    def __init__(self, table_id: str) -> None:
        # A key for this purpose alone.
        self._key = hashlib.sha256(b"checkback rocketmq transaction id\0" + table_id.encode()).digest()

    def of(self, half: Half, topic: str) -> str:
        """The id of a half message."""
        content = "/".join((_VERSION, *map(str, half))).encode()
        return base64.urlsafe_b64encode(self._signature(topic, content) + content).decode()

    def read(self, transaction_id: str, topic: str) -> Half | None:
        """The half message of an id; None if no gateway of these tables has made it for this topic."""
        if len(transaction_id) > _LONGEST:
            return None
        try:
            signed = base64.b64decode(transaction_id.encode("ascii"), b"-_", validate=True)
            signature, content = signed[:_SIGNATURE], signed[_SIGNATURE:]
            version, queue_id, queue_offset, group, message_id = content.decode().split("/", 4)
            half = Half(int(queue_id), int(queue_offset), group, message_id)
        except ValueError:
            return None
        signed_by_us = hmac.compare_digest(signature, self._signature(topic, content))
        return half if version == _VERSION and signed_by_us else None

    def recall_handle(self, half: Half, deliver_at: int, topic: str) -> str:
        """The handle by which a scheduled message is recalled. ``deliver_at``: ms."""
        return self.of(half._replace(message_id=f"{deliver_at}/{half.message_id}"), _RECALL + topic)

    def recalled(self, handle: str, topic: str) -> tuple[Half, int] | None:
        """The message of a handle, and its deliver_at (ms); None as in ``read``."""
        half = self.read(handle, _RECALL + topic)
        deliver_at, _, message_id = ("", "", "") if half is None else half.message_id.partition("/")
        if half is None or not deliver_at.isdecimal():
            return None
        return half._replace(message_id=message_id), int(deliver_at)

    def _signature(self, topic: str, content: bytes) -> bytes:
        signed = topic.encode() + b"\0" + content
        return hmac.digest(self._key, signed, "sha256")[:_SIGNATURE]
