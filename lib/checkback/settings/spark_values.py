"""What is shown of a Spark setting: only values that are known to be no secret.

Spark takes any key, and libraries put secrets under names of their own and into URLs and options of the JVM. So a
value is masked unless it is a number, a size, a duration, true, false or a class, or its key names what is none.
"""

from __future__ import annotations

import re

from checkback.urls import MASK

_SECRET_KEY = re.compile(
    r"(?i)secret|passw|passphrase|pwd|token|credential|private|signature|jaas|sas\b|pin$|(?:\b|api|access|account)[._-]?key"
)
_PLAIN = re.compile(r"(?i)true|false|-?[0-9]{1,10}(?:\.[0-9]{1,10})?(?:ms|us|s|min|m|h|d|[kmgtp]?i?b|[kgtp]|%)?")
_CLASSES = re.compile(r"(?:\A|,)[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+\.[A-Z][A-Za-z0-9_$]*(?=,|\Z)")
_CLASS_KEY = re.compile(r"(?i)(?:class|impl|provider|provider\.type(?:\..+)?)\Z")
#: last words of keys whose values are names, places and modes
_NAMED = re.compile(
    r"(?i)(?:master|remote|mode|codec|level|policy|format|version|region|endpoint|dir|path|host|hostname|address|name"
    r"|namespace|image|queue|interface|timezone|extensions|packages|excludes|ivy|jars|files|pyfiles|archives|python"
    r"|profile|serializer)\Z"
)
#: in such a value: something that may hold a secret after all
_HOLDS = re.compile(r"[=?@]|-----")


def shown_value(key: str, value: str) -> str:
    """The value, or the mask."""
    if _CLASSES.sub("", value) == "" and (_CLASS_KEY.search(key) or not _SECRET_KEY.search(key)):
        return value
    if _SECRET_KEY.search(key):
        return MASK
    if _PLAIN.fullmatch(value) or (_NAMED.search(key) and not _HOLDS.search(value)):
        return value
    return MASK
