"""The groups' tokens and secrets as the settings name them, for whoever takes or sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from checkback.errors import SettingsError
from checkback.rotated import Rotated, is_token
from checkback.signature import Signer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from checkback.rotated import Texts
    from checkback.settings.model import Producer

T = TypeVar("T")


def tokens_of(producers: Mapping[str, Producer], make: Callable[[Texts], T]) -> Rotated[T]:
    """What is made of the groups' tokens. Raises SettingsError."""
    stated = {name: each.token.get_secret_value() for name, each in producers.items() if each.token is not None}
    return Rotated(stated, "producers.{}.token", make, _refuse_other)


def _refuse_other(text: str, where: str) -> None:
    if not all(map(is_token, text.split())):
        fix = "use 16 to 512 of A-Z a-z 0-9 . _ ~ + / -, as `openssl rand -hex 32` makes"
        raise SettingsError("its file has what is not a bearer token", where, fix)


def token_of(text: str, where: str) -> str:
    """The one that is sent, or the only one. Raises SettingsError."""
    return Rotated({"": text}, where, lambda texts: texts[""].split()[0]).current


def secrets_of(producers: Mapping[str, Producer], make: Callable[[Texts], T]) -> Rotated[T]:
    """What is made of the groups' secrets. Raises SettingsError."""
    stated = {name: each.secret.get_secret_value() for name, each in producers.items() if each.secret is not None}
    return Rotated(stated, "producers.{}.secret", make, Signer)
