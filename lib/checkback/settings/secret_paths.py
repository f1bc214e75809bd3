"""Which settings are secrets: those whose type in the model is SecretStr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, SecretStr

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_secret(model: type[BaseModel], path: Sequence[str | int]) -> bool:
    """True if the value at the path is a secret. Parts of maps and lists are whatever they are."""
    found: Any = model
    for part in path:
        if isinstance(found, type) and issubclass(found, BaseModel):
            fields = {field.alias or name: field for name, field in found.model_fields.items()}
            if part not in fields:
                return False
            found = fields[str(part)].annotation
        elif get_origin(found) in (dict, list):
            found = get_args(found)[-1]
        else:
            return False
    return _has_secret(found)


def _has_secret(annotation: Any) -> bool:
    """True for SecretStr, also within ``| None`` and Annotated, not within a map or list."""
    if get_origin(annotation) in (dict, list):
        return False
    return annotation is SecretStr or any(map(_has_secret, get_args(annotation)))
