"""pydantic's validation errors as SettingsErrors: the dotted key, its origin, and what to write."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, SecretStr

from checkback.errors import SettingsError
from checkback.messages.fields import nearest
from checkback.settings.model import Producer, Push, TopicBody
from checkback.settings.values import format_size

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


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


KeyPath = tuple[str, ...]
#: maps whose values are masked, and may be ``env:NAME``
OPTIONS = (("kafka", "options"), ("storage", "options"))


def dotted(path: Sequence[str | int]) -> str:
    """``producers.orders.endpoints[0]``, ``transaction.timeout``; for a Spark setting, its name."""
    if path[0] == "spark" and len(path) > 1:
        return str(path[1])
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def where_of(path: Sequence[str | int], origin: str) -> str:
    """The key and its origin, for an error's place."""
    return f"{dotted(path)} ({origin})" if path else origin


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def explained(
    model: type[BaseModel],
    errors: Sequence[ErrorDetails],
    trees: Sequence[Mapping[str, Any]],
    origins: Mapping[KeyPath, str],
) -> SettingsError:
    """Convert pydantic's errors to what, where and fix of the first; the others are named after it."""
    (what, where, fix), *others = (_explained(model, error, trees, origins) for error in errors)
    also = dict.fromkeys(f"{place}: {wrong}" for wrong, place, _ in others if place != where)
    return SettingsError(what, where, "; also wrong: ".join([fix, *also]) if also else fix)


def _explained(
    model: type[BaseModel], error: ErrorDetails, trees: Sequence[Mapping[str, Any]], origins: Mapping[KeyPath, str]
) -> tuple[str, str, str]:
    """An error's what, where and fix, without the value if it may be a secret."""
    path = tuple(part for part in error["loc"] if part != "[key]")
    value = _last(trees, path)
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        while isinstance(value, Mapping) and value:
            key = next(iter(value))
            path, value = (*path, key), value[key]
        what, fix = "unknown setting", f"did you mean {_nearest(model, [str(part) for part in path])}?"
    elif kind == "setting":
        what, fix = context["what"], context["fix"]
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        what, fix = "is not a mapping", "write it as KEY: VALUE lines"
    else:
        what = error["msg"].replace("Input should be", "must be").replace("Field required", "is missing")
        fix = _FIX.get(kind, "correct it")
        for long, short in (("greater than or equal to", "at least"), ("less than or equal to", "at most")):
            what = what.replace(long, short)
        if isinstance(value, str) and (limit := context.get("ge", context.get("le"))) is not None:  # of a size
            what = what.replace(str(limit), format_size(limit))
        # An endpoint, and any of Spark's, may hold a secret, too.
        hidden = path[0] in ("producers", "push", "topics", "spark") or is_secret(model, path)
        if value is None:  # `--set KEY=`, an empty variable
            what, fix = f"is empty, {what}", _FIX["string_too_short"]
        elif isinstance(value, bool | int | float | str) and not hidden:
            what = f"is {reprlib.repr(value)}, {what}"
    return what, where_of(path, _origin(path, origins)), fix


_FIX = {
    "list_type": "write it as [first, second]",
    "missing": "add it",
    "int_type": "write a whole number",
    "bool_type": "write true or false",
    "string_type": "put it in quotes",
    "string_too_short": "write a value or leave the key out",
    "greater_than_equal": "write a value within the limit",
    "less_than_equal": "write a value within the limit",
}


def _last(trees: Sequence[Mapping[str, Any]], path: Sequence[str | int]) -> Any:
    """The value in the last layer that has the path; ... if none has."""
    for tree in reversed(trees):
        node: Any = tree
        for part in path:
            if isinstance(part, int):
                node = node[part] if isinstance(node, list) else ...
            else:
                node = node.get(part, ...) if isinstance(node, Mapping) else ...
        if node is not ...:
            return node
    return ...


def _origin(path: Sequence[str | int], origins: Mapping[KeyPath, str]) -> str:
    """The origin of a path, else of its nearest ancestor, else of the last leaf below it."""
    names = tuple(part for part in path if isinstance(part, str))
    for length in range(len(names), 0, -1):
        if names[:length] in origins:
            return origins[names[:length]]
    below = [origin for key, origin in origins.items() if key[: len(names)] == names]
    return below[-1] if below else "default"


def _nearest(model: type[BaseModel], path: Sequence[str]) -> str:
    """The valid dotted key most similar to the path as a whole, and with a part similar to its last; or several."""
    group = path[1] if len(path) > 2 else "GROUP"
    keys: list[KeyPath] = [("producers", group, name) for name in _names(Producer)]
    keys += [("push", group, name) for name in _names(Push)]
    keys += [("topics", group, name) for name in _names(TopicBody)]
    for section, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += [(section, name) for name in _names(field.annotation)]
    if len(path) > 1 and nearest(path[0], ["spark"]):
        keys.append(("spark", ".".join(path[1:])))

    def likeness(key: KeyPath) -> float:
        whole = difflib.SequenceMatcher(None, ".".join(key), ".".join(path).lower()).ratio()
        return whole + max(difflib.SequenceMatcher(None, name, path[-1].lower()).ratio() for name in key)

    # Without a section, as where a line is not indented: it may be any with such a key.
    found = [key for key in keys if tuple(path) == key[1:]] or [max(keys, key=likeness)]
    return " or ".join(".".join(key) for key in found)
