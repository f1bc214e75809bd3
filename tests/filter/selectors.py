"""Random selectors and messages, as strategies of hypothesis."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

NAMES = ["a", "b", "c", "TAGS", "KEYS"]
#: Numbers that Java takes and those that it does not, at the limits of its types, in other scripts.
TEXTS = [
    *["0", "-0", "+5", "5", " 5", "5L", "5.0", "5d", "0x10", "0x1p3", "1e3", "1e400", "-1e400", "NaN", "-NaN"],
    *["Infinity", "-Infinity", "inf", "nan", "true", "TRUE", "false", "", "x", "eu", "x'y", "٣", "5٣", "\uff11\uff12"],
    *["2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808"],
    *["-9223372036854775808", "-9223372036854775809", "0" * 30 + "5", "-0.0", "0.0", ".5", "5.", ".", "1e", "--5"],
    *["\t5.5\n", "5\n", "\u00a05.5", "abc", "本", "😀", "1_000", "0.30000000000000004", "\x00-0", "\U0001d7d8"],
]
_NUMBERS = ["0", "3", "5", "5L", "-5", "(5)", "2147483648", "-2147483648", "9223372036854775807", "1e3", ".5", "5.0"]
_QUOTED = ["'eu'", "'x'", "'x''y'", "'5'", "'true'", "'本'", "''"]
_ORDERS = [">", ">=", "<", "<="]

texts = st.sampled_from(TEXTS) | st.text(st.characters(codec="utf-8"), max_size=6)
names = st.sampled_from(NAMES)
numbers = st.sampled_from(_NUMBERS) | st.integers(0, 2**63 - 1).map(str)
quoted = st.sampled_from(_QUOTED) | texts.map(lambda text: "'" + text.replace("'", "''") + "'")
_nots = st.sampled_from(["", "NOT "])
_equals = st.sampled_from(["=", "<>"])
_constants = numbers | quoted | st.sampled_from(["TRUE", "FALSE"])


def _join(*parts: Any) -> st.SearchStrategy[str]:
    """The parts with spaces between, in parentheses."""
    strategies = [st.just(part) if isinstance(part, str) else part for part in parts]
    return st.tuples(*strategies).map(lambda texts: "(" + " ".join(texts) + ")")


_searches = st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"])
_between = st.sampled_from(["1 AND 5", "a AND b", "-5 AND c", "0 AND 2147483648", ".5 AND 1e3", "5 AND 5"])
_leaves = st.one_of(
    _join(names, st.sampled_from(_ORDERS), numbers | names),
    _join(numbers, st.sampled_from(_ORDERS), names),
    _join(names, _equals, _constants | names),
    _join(numbers | quoted, _equals, names | quoted | numbers),
    _join(names, _nots, "IN (", st.lists(quoted, min_size=1, max_size=6).map(", ".join), ")"),
    _join(names | quoted | numbers, _nots, _searches, quoted),
    _join(names, _nots, "BETWEEN", _between),
    _join(names | numbers, "IS", _nots, "NULL"),
    _join(numbers | names, ">", names.map(lambda name: "-" + name)),
    names,
    st.sampled_from(["TRUE", "FALSE", "NULL"]),
)


def _larger(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(st.sampled_from([" AND ", " OR "]), st.lists(smaller, min_size=2, max_size=4)).map(
            lambda pair: "(" + pair[0].join(pair[1]) + ")"
        ),
        _join("NOT", smaller),
        _join(smaller, _equals, smaller | _constants | names),
        _join(names | _constants, _equals, smaller),
        _join(smaller, "IS", _nots, "NULL"),
        _join(smaller, _nots, _searches, quoted),
        _join("-", smaller, st.sampled_from(["> 5", "< a", "= 5", "IS NULL"])),
    )


#: Texts of the grammar, some of which RocketMQ refuses for what they compare.
selectors = st.recursive(_leaves, _larger, max_leaves=8)
#: tags, keys, properties
messages = st.tuples(
    st.none() | texts,
    st.none() | texts,
    st.none() | st.dictionaries(st.sampled_from(["a", "b", "c", "TAGS"]), texts, max_size=4),
)

SCHEMA = pa.schema([("tags", pa.string()), ("keys", pa.string()), ("properties", pa.map_(pa.string(), pa.string()))])


def table(rows: list[tuple[str | None, str | None, dict[str, str] | None]]) -> pa.Table:
    """A topic table's columns."""
    tags, keys, properties = zip(*rows, strict=True) if rows else ((), (), ())
    maps = [None if entries is None else list(entries.items()) for entries in properties]
    return pa.table([tags, keys, maps], schema=SCHEMA)
