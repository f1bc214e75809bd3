"""YAML as settings take it: text, true and false, null, decimal numbers, lists and mappings.

Not YAML 1.1's dates, octal numbers and numbers of base 60 (``010`` would be 8, ``2:28`` 148): these are text. Tags are
refused, and so are duplicate keys: the first of two sections would be lost silently.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

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
