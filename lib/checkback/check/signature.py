"""The signature of a request, by Standard Webhooks 1.0.

Source: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md. The signed text is
``id.timestamp.body``: the receiver can verify authenticity and integrity, and detect replay attacks.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from checkback.errors import SettingsError

_PREFIX = "whsec_"


def webhook_id(queue_id: int, queue_offset: int, check_times: int) -> str:
    """The id of a check. A retry has the same id, an idempotency key for the producer."""
    return f"chk_{queue_id}_{queue_offset}_{check_times}"


class Signer:
    """Signs requests with the secret of one group.

    ``secret``: base64, with or without the prefix ``whsec_``. Raises SettingsError, which never quotes the secret,
    if it is empty or not base64: lenient decoding would sign with another key than the receiver's.
    """

    def __init__(self, secret: str, where: str = "secret") -> None:
        text = secret.removeprefix(_PREFIX).rstrip("=")
        try:
            key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError):  # ValueError: not ASCII
            key = b""
        if not key:
            raise SettingsError(
                "the secret is empty or not base64", where, "use 24 to 64 random bytes as base64, after whsec_"
            ) from None
        self._key = key

    def __repr__(self) -> str:
        return "Signer()"

    def headers(self, message_id: str, timestamp: float, body: str | bytes) -> dict[str, str]:
        """The three signature headers of a request. ``timestamp``: seconds since the epoch, when this try is sent."""
        seconds = str(int(timestamp))
        content = body.encode() if isinstance(body, str) else body
        digest = hmac.digest(self._key, f"{message_id}.{seconds}.".encode() + content, hashlib.sha256)
        signature = f"v1,{base64.b64encode(digest).decode('ascii')}"
        return {"webhook-id": message_id, "webhook-timestamp": seconds, "webhook-signature": signature}
