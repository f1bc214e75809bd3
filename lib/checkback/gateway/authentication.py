"""Which client may send for which group: a bearer token per group, or two while it is rotated."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from checkback.gateway.problems import Problem
from checkback.settings.secrets import tokens_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.rotated import Texts
    from checkback.settings import Producer

#: the groups that a client may send for; None = all
Groups = frozenset[str] | None


class BearerTokens:
    """The groups' tokens. If any group has a token, every request needs one. Raises SettingsError."""

    def __init__(self, producers: Mapping[str, Producer]) -> None:
        self._known = frozenset(producers)
        self._tokens = tokens_of(producers, _groups_of)

    @property
    def needed(self) -> bool:
        """Is a token required?"""
        return bool(self._tokens.current)

    def groups(self, authorization: bytes) -> Groups | Problem:
        """The groups of the header's token; None = all, no token is required.

        Every token is compared, each in constant time, against timing attacks.
        """
        if not (tokens := self._tokens.current):
            return None
        scheme, _, given = authorization.partition(b" ")
        given = given.strip()
        found: Groups = None
        for token, groups in tokens.items():
            if hmac.compare_digest(token, given):
                found = groups
        if found is None or scheme.lower() != b"bearer":
            what = "the token is not valid" if authorization else "there is no header Authorization: Bearer TOKEN"
            return Problem("unauthorized", what)
        return found

    def refused(self, group: str, groups: Groups) -> Problem | None:
        """Why a client with the token of ``groups`` may not act for the group; None if it may."""
        if groups is not None and group not in groups:
            return Problem("forbidden_group" if group in self._known else "unknown_group", _NOT_YOURS)
        if self._known and group not in self._known:
            return Problem("unknown_group", "producer_group: the settings name no such group")
        return None


def _groups_of(tokens: Texts) -> dict[bytes, frozenset[str]]:
    groups: dict[bytes, set[str]] = {}
    for group, text in tokens.items():
        for token in text.split():
            groups.setdefault(token.encode(), set()).add(group)
    return {token: frozenset(each) for token, each in groups.items()}


_NOT_YOURS = "producer_group: not one that the token stands for"
