"""The layers of settings, merged by pydantic-settings, with the origin of every leaf.

Each layer becomes a list of leaves (path, value, origin). Values from the environment and ``--set`` are YAML, as in
files. pydantic-settings' environment source does not fit: it parses JSON, reads os.environ only, ignores misspelt
names, and records no origins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from checkback.errors import SettingsError
from checkback.rotated import FILE_REFERENCE
from checkback.settings.model import BASE_FILE, Settings, flatten
from checkback.settings.validation_errors import OPTIONS, KeyPath, dotted, explained, is_secret, where_of
from checkback.settings.values import ENV_REFERENCE, SECRET_OPTION

_INT = r"[-+]?(?:0|[1-9][0-9_]{0,60}|0b_*[01][01_]{0,60}|0x_*[0-9a-fA-F][0-9a-fA-F_]{0,60})"
_FLOAT = r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|[-+]?\.(?i:inf)|\.(?i:nan)"
#: by PyYAML's text, of those that do not quote
_FIXES = {
    "found character '\\t' that cannot start any token": "indent with spaces, not with tabs",
    "mapping values are not allowed here": "check the indentation and the spaces after colons, or put it in quotes",
    "expected <block end>, but found '<block mapping start>'": "indent it as the lines before it",
    "could not find expected ':'": "write KEY: VALUE, with a space after the colon",
}


class InvalidYamlError(Exception):
    """``what`` is wrong, and what to do. As text with the position. Without the YAML: it may contain a secret."""

    def __init__(self, what: str, fix: str = "", mark: Any = None) -> None:
        super().__init__(f"{what}, line {mark.line + 1}, column {mark.column + 1}" if mark else what)
        self.what, self.fix = what, fix


def parsed(text: str) -> Any:
    """The value that the text states. Raises InvalidYamlError."""
    try:
        return _Loader(text).get_single_data()
    except InvalidYamlError as error:
        invalid = error
    except yaml.YAMLError as error:
        fix = _FIXES.get(getattr(error, "problem", ""), "")
        invalid = InvalidYamlError("is not valid YAML", fix, mark=getattr(error, "problem_mark", None))
    except RecursionError:
        invalid = InvalidYamlError("is nested too deeply")
    except Exception:  # noqa: BLE001 - PyYAML passes on what Python raises, as for the escape "\U00110000"
        invalid = InvalidYamlError("is not valid YAML")
    # Outside the handler: PyYAML's error, which quotes the text, is not chained to this one.
    raise invalid


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._within: list[str | None] = []

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) and event.anchor in self._within:
            raise InvalidYamlError("has an alias (*) of what it is in", "write it in quotes", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise InvalidYamlError("has a tag (!)", "leave it out, or put the value in quotes", event.start_mark)
        self._within.append(event.anchor)
        node = super().compose_node(parent, index)
        self._within.pop()
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    raise InvalidYamlError("has a duplicate key", mark=key_node.start_mark)
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":bool", ":null", ":merge"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(rf"(?:{_INT})\Z"), list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{_FLOAT})\Z"), list("-+.0123456789"))


ENV_PREFIX = "CHECKBACK__"
OVERRIDE = "--set"
#: a value of one word or several, in part a comment
_COMMENT = re.compile(r"""[^"'\[{]*?(?:^|\s)#""")
_GROUPS = ("kafka", "groups")
#: sections with a group's settings below its name
_BY_GROUP = ("producers", "push", "topics")
_EXAMPLES = {"secret": "whsec_...", "token": "..."}

S = TypeVar("S", bound=BaseModel)


class Leaf(NamedTuple):
    """One value of one layer."""

    path: KeyPath
    value: Any
    origin: str


def read_layers(
    model: type[S],
    config: Path | None,
    overrides: Sequence[str],
    environ: Mapping[str, str],
    unneeded: Collection[str] = (),
) -> tuple[S, dict[str, str]]:
    """The model from all layers, and the origin of each dotted key that is not a default.

    In the sections ``unneeded`` a key whose variable (``env:NAME``) is unset is left out. Raises SettingsError.
    """
    layers = [_file(Path(BASE_FILE))] if Path(BASE_FILE).exists() else []
    if config is not None:
        layers.append(_file(config))
    given = _overrides(overrides)
    named = [leaf.path for layer in (*layers, given) for leaf in layer]
    groups = {path[:2] for path in named if path[0] in _BY_GROUP and path[1:]}
    layers += [_environment(environ, groups), given]
    last = {leaf.path: leaf for layer in layers for leaf in layer}
    unset = {path for path, leaf in last.items() if path[0] in unneeded and _is_unset(leaf, environ)}
    gone = {path[:2] for path in unset if _is_url(path)}  # a group of push is nothing without it
    last = {path: leaf for path, leaf in last.items() if path not in unset and path[:2] not in gone}
    layers = [
        [leaf for leaf in layer if leaf.path in last and (leaf is last[leaf.path] or not _is_schema(leaf.path))]
        for layer in layers
    ]
    layers = [[_resolved(leaf, environ, leaf is last[leaf.path]) for leaf in layer] for layer in layers]

    origins: dict[KeyPath, str] = {leaf.path: leaf.origin for layer in layers for leaf in layer}
    trees = [_tree(layer) for layer in layers]

    class Layered(model, BaseSettings):  # type: ignore[valid-type, misc]
        """The same fields, filled from the layers."""

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **__: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(InitSettingsSource(settings_cls, tree) for tree in reversed(trees))

    try:
        merged = Layered()
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
    else:
        return model.model_validate(dict(merged)), {dotted(path): origin for path, origin in origins.items()}
    # Outside the handler: the ValidationError, which holds the inputs, is not chained to the error shown.
    raise explained(model, errors, trees, origins)


def _leaves(path: KeyPath, value: Any, origin: str) -> Iterator[Leaf]:
    """The leaves of a value: maps are flattened, down to the depth of the settings."""
    if path[:1] == ("spark",) and len(path) > 1:
        name = ".".join(path[1:])
        yield Leaf(("spark", name if name.startswith("spark.") else f"spark.{name}"), value, origin)
    elif path[:2] in (*OPTIONS, _GROUPS) and len(path) > 3:
        yield from _leaves((*path[:2], ".".join(path[2:])), value, origin)  # names in Kafka contain dots
    elif _is_schema(path):
        yield Leaf(path, value, origin)
    elif isinstance(value, Mapping) and value:
        for key, below in value.items():
            if not isinstance(key, str):
                named = "a key" if path else f"the key {key!r}"  # below a section it may be a misplaced secret
                raise SettingsError(f"{named} is not text", where_of(path, origin), "put it in quotes")
            yield from _leaves((*path, key), below, origin)
    elif value is None and (len(path) == 1 or (len(path) == 2 and path[0] in _BY_GROUP)):
        # `orders:` with nothing below it is an empty section or group.
        yield Leaf(path, {}, origin)
    elif path:
        yield Leaf(path, value, origin)


def _is_schema(path: KeyPath) -> bool:
    """True for a topic's schema: a mapping that is one value, which layers replace."""
    return len(path) == 3 and path[0] == "topics" and path[2] == "schema"


def _file(path: Path) -> list[Leaf]:
    name = str(path)
    try:
        content = parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        what, fix = f"cannot be read: {error.strerror}", "check the path and its permissions"
    except UnicodeDecodeError:
        what, fix = "is not UTF-8 text", "save it as UTF-8"
    except InvalidYamlError as error:
        what, fix = str(error), error.fix or "correct it there"
    else:
        if content is None or isinstance(content, dict):
            return list(_leaves((), content, name))
        what, fix = "is not a mapping", "write it as sections: `transaction: {timeout: 6s}`"
    raise SettingsError(what, name, fix)


def _environment(environ: Mapping[str, str], groups: set[KeyPath]) -> list[Leaf]:
    leaves: list[Leaf] = []
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX):
            path = _path_of_variable(name, groups)
            leaves += _leaves(path, _value(path, environ[name], name), name)
    return leaves


def _path_of_variable(name: str, known: set[KeyPath]) -> KeyPath:
    """The path of a variable. Keys are case-insensitive; groups are spelt as elsewhere, else as given.

    ``known``: section and name of the groups in files and ``--set``.
    """
    first, *rest = name[len(ENV_PREFIX) :].split("__")
    section = first.lower()
    if section == "spark":
        return (section, "__".join(rest)) if rest else (section,)
    if section in _BY_GROUP and rest:
        groups = {path[1] for path in known if path[0] == section}
        # A group's name may contain __, so the field is the last part.
        has_field = len(rest) > 2 or (len(rest) == 2 and "__".join(rest).lower() not in {g.lower() for g in groups})
        group = "__".join(rest[:-1] if has_field else rest)
        same = [each for each in groups if each.lower() == group.lower()]
        if len(same) > 1 and group not in same:
            raise SettingsError(f"may mean {' or '.join(sorted(same))}", name, "write the group's name in its case")
        group = group if group in same or not same else same[0]
        return (section, group, rest[-1].lower()) if has_field else (section, group)
    return (section, *(part.lower() for part in rest))


def _overrides(overrides: Sequence[str]) -> list[Leaf]:
    leaves: list[Leaf] = []
    for number, text in enumerate(overrides, start=1):
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            # Without the text: it may contain a secret.
            raise SettingsError(
                "is not KEY=VALUE", f"{OVERRIDE} (number {number})", "write --set transaction.timeout=6s"
            )
        leaves += _leaves(path, _value(path, value, OVERRIDE), OVERRIDE)
    return leaves


def _value(path: KeyPath, text: str, origin: str) -> Any:
    """The text parsed as YAML; a secret unparsed, since base64 may look like a number."""
    if _is_secret(path):
        return text
    if _COMMENT.match(text):
        raise SettingsError("has a comment (#)", where_of(path, origin), "put the value in quotes")
    try:
        return parsed(text)
    except InvalidYamlError as error:
        raise SettingsError(error.what, where_of(path, origin), error.fix or "put the value in quotes") from None


def _is_secret(path: KeyPath) -> bool:
    if path[:2] in OPTIONS:
        return len(path) == 3 and SECRET_OPTION.search(path[2]) is not None
    return is_secret(Settings, path)


def _is_url(path: KeyPath) -> bool:
    """True for a group's URL in push, whose path is a secret of some services."""
    return len(path) == 3 and path[0] == "push" and path[2] == "url"


def _may_refer(path: KeyPath) -> bool:
    return path[:2] in OPTIONS or _is_url(path)


def _is_reference(leaf: Leaf) -> bool:
    return isinstance(leaf.value, str) and leaf.value.startswith(ENV_REFERENCE)


def _is_unset(leaf: Leaf, environ: Mapping[str, str]) -> bool:
    if not _is_reference(leaf) or not (_is_secret(leaf.path) or _may_refer(leaf.path)):
        return False
    return not environ.get(leaf.value[len(ENV_REFERENCE) :])


def _resolved(leaf: Leaf, environ: Mapping[str, str], used: bool) -> Leaf:
    """The leaf with ``env:NAME`` replaced by the variable's value. Plain secrets are only allowed in the environment.

    For a leaf that is not ``used``, because a later layer overrides it, the variable may be unset.
    """
    refers = _is_reference(leaf) and _may_refer(leaf.path)
    if not (_is_secret(leaf.path) or refers) or leaf.value is None:
        return leaf
    where, fix = where_of(leaf.path, leaf.origin), 'put it in an environment variable and write "env:NAME" here'
    if not _is_reference(leaf):
        in_file = leaf.path[0] in _BY_GROUP or leaf.path[0] == "dashboard"
        if leaf.origin.startswith(ENV_PREFIX) or (in_file and str(leaf.value).startswith(FILE_REFERENCE)):
            return leaf
        raise SettingsError(f"a {leaf.path[-1]} in plain text is refused", where, fix)
    name = leaf.value[len(ENV_REFERENCE) :]
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise SettingsError("what follows env: is not the name of a variable", where, fix)
    if used and not environ.get(name):
        raise SettingsError(
            f"the environment variable {name} is not set", where, f"export {name}={_EXAMPLES.get(leaf.path[-1], '...')}"
        )
    return leaf._replace(value=environ[name]) if used else leaf


def _tree(leaves: Sequence[Leaf]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value, _ in leaves:
        node = tree
        for key in path[:-1]:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        if value != {} or not isinstance(node.get(path[-1]), dict):
            node[path[-1]] = value
    return tree


@dataclass(frozen=True)
class Loaded:
    """Settings and their origins.

    ``origins`` has every dotted key of ``settings``: "default", a file's path, an environment variable, or "--set".
    """

    settings: Settings
    origins: Mapping[str, str]

    def origin(self, key: str) -> str:
        """The origin of a dotted key's value."""
        return self.origins.get(key, "default")


#: sections whose secrets are not needed to look at tables, or to work on them
SECRETS_OF_OTHERS = frozenset({"producers", "push", "topics", "kafka", "dashboard"})


def load(
    config: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    unneeded: Collection[str] = (),
) -> Loaded:
    """Load the settings from all layers.

    ``config`` is the file of ``--config``, ``overrides`` are ``KEY=VALUE``, ``environ`` replaces os.environ. A secret
    of the sections ``unneeded`` whose variable (``env:NAME``) is unset is left out; elsewhere that is an error.
    Raises SettingsError, in one line: the problem, key and layer, and the fix. It never shows a secret.
    """
    environ = os.environ if environ is None else environ
    settings, origins = read_layers(Settings, config, overrides, environ, unneeded)
    return Loaded(settings, {key: origins.get(key, "default") for key in flatten(settings)})
