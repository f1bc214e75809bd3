"""Names of tables in a catalog. A catalog ignores case and takes fewer characters than RocketMQ has for topics.

A topic of small letters, digits and single underscores is ``topic_<topic>``. Of any other, what does not fit becomes
an underscore, and ``__`` with ten digits of the topic's SHA-256 follows: so `Orders`, `orders` and `orders-` are three
tables, ``topic_orders__b7e8acdd52``, ``topic_orders`` and ``topic_orders___3cd3259874``. Such a table has its topic as
the property ``checkback.topic``.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

#: with it the names of topics' tables begin
TABLE_PREFIX = "topic_"
#: property of a topic's table: the topic as it is spelt
TOPIC_PROPERTY = "checkback.topic"
_PLAIN = re.compile(r"(?!.*__)[a-z0-9_]+")
_OTHER = re.compile(r"[^a-z0-9_]")
#: of a topic, so that the name fits the catalogs' limits (Hive: 128)
_LENGTH = 100


def table_name(name: str) -> str:
    """The name in a catalog of the table ``name``: one of SCHEMAS, or ``topics/<topic>``."""
    if not name.startswith(TOPIC_PREFIX):
        return name
    topic = name.removeprefix(TOPIC_PREFIX)
    if is_plain(topic):
        return TABLE_PREFIX + topic
    digits = hashlib.sha256(topic.encode()).hexdigest()[:10]
    return f"{TABLE_PREFIX}{_OTHER.sub('_', topic.lower())[:_LENGTH]}__{digits}"


def is_plain(topic: str) -> bool:
    """Does the topic's table have its very name, after TABLE_PREFIX?"""
    return len(topic) <= _LENGTH and _PLAIN.fullmatch(topic) is not None


def whose_folder(topic: str, listed: Iterable[str]) -> str | None:
    """The topic whose table lies in the folder that ``topic`` leads to; None: there is no such folder.

    ``listed``: the folders' names as the file system lists them. Where it ignores case, `Orders` leads to the folder
    that it lists as `orders`: whichever topic came first has it.
    """
    names = set(listed)
    if topic in names:
        return topic
    return min((name for name in names if name.casefold() == topic.casefold()), default=None)
