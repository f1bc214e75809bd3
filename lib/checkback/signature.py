"""The signature of a request, by Standard Webhooks 1.0.

Source: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md. The signed text is
``id.timestamp.body``: the receiver can verify authenticity and integrity, and detect replay attacks.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import TYPE_CHECKING

from standardwebhooks import Webhook, WebhookVerificationError

from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "whsec_"
#: Checkback's timestamp format. The library would parse 1.8e9, +1800000000 and 1800000000.5 as the same second.
_SECONDS = re.compile(r"[1-9][0-9]{0,11}", re.ASCII)


class Signer:
    """Signs requests with the secrets of one group, with each of them: a receiver verifies one.

    ``secrets``: apart by spaces or lines. Raises SettingsError as `key_of`.
    """

    def __init__(self, secrets: str, where: str = "secret") -> None:
        self._keys = [key_of(secret, where) for secret in secrets.split() or [""]]

    def __repr__(self) -> str:
        return "Signer()"

    def headers(self, message_id: str, timestamp: float, body: str | bytes) -> dict[str, str]:
        """The three signature headers of a request. ``timestamp``: seconds since the epoch, when this try is sent."""
        seconds = str(int(timestamp))
        content = body.encode() if isinstance(body, str) else body
        signed = f"{message_id}.{seconds}.".encode() + content
        digests = [hmac.digest(key, signed, hashlib.sha256) for key in self._keys]
        signature = " ".join(f"v1,{base64.b64encode(digest).decode('ascii')}" for digest in digests)
        return {"webhook-id": message_id, "webhook-timestamp": seconds, "webhook-signature": signature}


class Verifier:
    """Verifies requests that one of a group's secrets has signed.

    ``secrets``: apart by spaces or lines. Raises SettingsError as `key_of`.
    """

    def __init__(self, secrets: str, where: str = "secret") -> None:
        for secret in secrets.split() or [""]:
            key_of(secret, where)  # strict; the library ignores invalid base64 characters
        self._webhooks = [Webhook(secret) for secret in secrets.split()]

    def is_genuine(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Is the signature right, and not more than five minutes off? ``headers``: by lower-case name."""
        if not _SECONDS.fullmatch(headers.get("webhook-timestamp", "")):
            return False
        return any(_verifies(webhook, headers, body) for webhook in self._webhooks)


def _verifies(webhook: Webhook, headers: Mapping[str, str], body: bytes) -> bool:
    try:
        webhook.verify(body, dict(headers), json_parse=False)
    except (WebhookVerificationError, ValueError):  # ValueError: a header or the body that cannot be decoded
        return False
    return True


def key_of(secret: str, where: str) -> bytes:
    """The key of a secret: base64, with or without the prefix ``whsec_``.

    Raises SettingsError, which never quotes the secret, if it is empty or not base64: lenient decoding would sign with
    another key than the receiver's.
    """
    text = secret.removeprefix(_PREFIX).rstrip("=")
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        key = b""
    if not key:
        fix = "use 24 to 64 random bytes as base64, after whsec_"
        raise SettingsError("the secret is empty or not base64", where, fix) from None
    return key
