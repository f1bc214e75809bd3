"""Who may see the dashboard: this machine alone, or whoever has the token. Pure but for the clock that it is given."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from checkback.urls import LOOPBACK, host_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: the cookie of a browser that has given the token, and how long it is valid (s)
COOKIE, VALID_S = "checkback_dashboard", 12 * 3600


class Access:
    """Sessions and CSRF tokens, derived from the token by HMAC: nothing is kept, and a new token ends all sessions."""

    def __init__(self, token: str | None, clock: Callable[[], float]) -> None:
        """``token``: dashboard.token; None = requests for this machine only. ``clock``: s since the epoch."""
        self._token = token
        self._clock = clock
        # Without a token no action is allowed, but forms that search have no secret either.
        secret = token.encode() if token else secrets.token_bytes(32)
        self._key = hashlib.sha256(b"checkback dashboard" + secret).digest()

    @property
    def needs_token(self) -> bool:
        """Must a request carry the token or a session?"""
        return self._token is not None

    def is_token(self, given: str) -> bool:
        """Is it the token? In constant time."""
        return self._token is not None and _is_same(self._token, given)

    def session(self) -> str:
        """The cookie of a new session."""
        about = f"{int(self._clock()) + VALID_S}.{secrets.token_urlsafe(16)}"
        return f"{about}.{self._signed('session', about)}"

    def is_session(self, cookie: str) -> bool:
        """Was the cookie made here, and is it still valid?"""
        about, _, signature = cookie.rpartition(".")
        until = about.partition(".")[0]
        return _is_same(self._signed("session", about), signature) and until.isdecimal() and int(until) > self._clock()

    def csrf(self, cookie: str) -> str:
        """What a form of this session must carry."""
        return self._signed("form", cookie)

    def is_csrf(self, cookie: str, given: str) -> bool:
        """Does the form belong to the session?"""
        return _is_same(self.csrf(cookie), given)

    def _signed(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def allowed(self, headers: Mapping[str, str], cookie: str) -> bool:
        """May the request be answered? By the header Authorization, the session, or, without a token, by its Host.

        The Host is checked against DNS rebinding: a page of another site could otherwise read this machine's dashboard.
        """
        if self._token is None:
            return host_of(headers.get("host", "")) in LOOPBACK
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return (scheme.lower() == "bearer" and self.is_token(given.strip())) or self.is_session(cookie)


def is_foreign(method: str, headers: Mapping[str, str], costly: bool) -> bool:
    """Is it a request by a page of another site or port that is not to be answered?

    Such a page may link to pages (Sec-Fetch-Mode: navigate), but neither load them as its parts nor in advance, and
    not have the ``costly`` ones made. Browsers older than 2023 do not send Sec-Fetch-Site; programs send none of these.
    """
    site = headers.get("sec-fetch-site")
    if site is None:
        origin = headers.get("origin")
        return origin is not None and not is_same_origin(origin, headers.get("host", ""))
    if site in ("same-origin", "none"):
        return False
    linked = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return costly or method != "GET" or not linked or "sec-purpose" in headers


def is_same_origin(origin: str | None, host: str) -> bool:
    """Does a form come from this dashboard's own pages? Browsers send Origin with each POST."""
    if origin is None or origin == "null":
        return False
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _is_same(secret: str, given: str) -> bool:
    """In constant time; compare_digest raises TypeError for text that is not ASCII."""
    return hmac.compare_digest(secret.encode("utf-8", "surrogatepass"), given.encode("utf-8", "surrogatepass"))
