"""SQL92 texts: what RocketMQ's grammar makes of them, what it refuses, and where."""

from __future__ import annotations

import pickle
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkback.errors import SelectorError
from checkback.filter import MessageSelector
from checkback.filter.sql92_parser import DEPTH_MAX, TEXT_MAX, parse

if TYPE_CHECKING:
    from checkback.filter.expressions import Condition

SAME = [
    ("a = 1", "a=1"),
    ("a = 1", "(((a)) = (1))"),
    ("a = 1", "a = 1 b"),  # what cannot continue the expression is ignored
    ("a = 1", "a = 1) OR TRUE"),
    ("a = 0", "a = 017"),
    ("a = 0", "a = 0x1F"),
    ("a = 1", "a = 1 -- no line break, so no comment"),
    ("a = 1", "a /* x ** / */ = -- y\r 1"),
    ("a = 'x--\n'", "a = 'x--\n' -- it's a comment\n -- and another\r"),
    ("a = 'it''s --\n'", "a /* -- \n ' */ = -- /*\n 'it''s --\n' -- no line break, so no comment"),
    ("a = 5", "a = 5L"),
    ("a = 1 AND b = 2 OR c = 3", "(a = 1 AND b = 2) OR c = 3"),
    ("NOT a = 1", "(NOT a) = 1"),
    ("a IS NULL", "a is\tNull"),
    ("a > +5", "a > 5"),
    ("a NOT IN ('x''y')", "a not in('x''y')"),
    ("a BETWEEN 1 AND 5 AND b = 1", "(a BETWEEN 1 AND 5) AND b = 1"),
    ("a = 1.5e3", "a=1500."),
    ("inner = 1", "inner = 1"),
]
REFUSED = [
    ("", 0),
    (" ", 2),
    ("a = ", 5),
    ("a = 'x", 5),
    ("a = 1 ?", 7),
    ("a ? 1", 3),
    ("日 = 1", 1),
    ("\u212a = 1", 1),  # the Kelvin sign is no K
    ("a > 'x'", 5),
    ("a > TRUE", 5),
    ("(a = 1) > 2", 2),
    ("a = NULL", 5),
    ("TRUE = 5", 1),
    ("5", 1),
    ("'x'", 1),
    ("-a", 1),
    ("NOT 5", 5),
    ("a = 1 AND 'x'", 11),
    ("a = 1 AND", 10),
    ("a IN (5)", 7),
    ("a IN ()", 7),
    ("'a' IN ('a')", 1),
    ("a BETWEEN 5 AND 1", 11),
    ("a CONTAINS b", 12),
    ("a = 0.0", 5),
    ("a = 1e400", 5),
    ("a = 9223372036854775808", 5),
    ("a = -9223372036854775808", 6),
    ("a = 1 NOT", 10),
    ("a = 1 -- no comment\n ?", 22),
    ("a = '\ud83d'", 6),
]


@pytest.mark.parametrize(("text", "other"), SAME)
def test_two_texts_of_one_meaning(text: str, other: str) -> None:
    assert parse(text) == parse(other)


@pytest.mark.parametrize(("text", "position"), REFUSED)
def test_refused(text: str, position: int) -> None:
    with pytest.raises(SelectorError) as caught:
        MessageSelector.by_sql(text)
    error = caught.value
    assert (error.text, error.position) == (text, position)
    assert "\n" not in str(error)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - ours
    assert (str(again), again.text, again.position) == (str(error), text, position)


def test_like_is_ignored_not_refused() -> None:
    """RocketMQ has no LIKE, and ignores what it cannot read: a property as a condition is left, which is never true."""
    assert parse("a LIKE 'x'") == parse("a")
    assert not MessageSelector.by_sql("a LIKE 'x'").matches(properties={"a": "x"})


def test_zero_needs_no_point() -> None:
    assert MessageSelector.by_sql("a > 0").matches(properties={"a": "1"})


def test_long_chains() -> None:
    text = " OR ".join(f"a = {number}" for number in range(3000))
    assert MessageSelector.by_sql(text).matches(properties={"a": "2999"})


def test_nested_too_deeply() -> None:
    assert parse("(" * 5000 + "a = 1" + ")" * 5000) == parse("a = 1")
    parse("NOT " * (DEPTH_MAX - 3) + "(a = 1)")
    for text in ("NOT " * DEPTH_MAX + "(a = 1)", "a = " + "- " * 20_000 + "1"):
        with pytest.raises(SelectorError, match="nested"):
            parse(text)


def test_nested_between_that_repeats_its_value() -> None:
    """Evaluated twice at each level, as in RocketMQ: 33 levels take hours."""
    text = "a"
    for level in range(33):
        text = f"-({text}) BETWEEN 1 AND 5"
        if level == 8:
            assert not MessageSelector.by_sql(text).matches(properties={"a": "1"})
    with pytest.raises(SelectorError, match="BETWEEN"):
        parse(text)


@pytest.mark.slow
def test_time_is_proportional_to_the_length() -> None:
    """Without a line break no -- begins a comment; 20,000 minuses took half a minute."""
    for text in ("a > " + "-" * (TEXT_MAX - 5) + "5", "\na > " + "-- " * (TEXT_MAX // 3 - 2) + "5"):
        assert len(text) <= TEXT_MAX
        with pytest.raises(SelectorError, match="nested"):
            parse(text)
    with pytest.raises(SelectorError, match=f"more than {TEXT_MAX} characters") as caught:
        parse("a = 1 OR " * TEXT_MAX)
    assert len(str(caught.value)) < 200


@given(text=st.text() | st.text("ab01.eEL'()<>=-+ ,*/\n\t$_NOTINSULxX"))
@example(text="A)<0")
def test_any_text_is_parsed_or_refused(text: str) -> None:
    condition = _parsed(text)
    if isinstance(condition, SelectorError):
        assert 1 <= condition.position <= len(text) + 1
        return
    if min(accumulate({"(": 1, ")": -1}.get(char, 0) for char in f" {text}")) < 0:
        return  # "A)<0" is "A", as what follows is ignored, and "(A)<0)" is a comparison
    in_parentheses = _parsed(f"({text}\n)")  # refused if something of the text was ignored
    assert isinstance(in_parentheses, SelectorError) or in_parentheses == condition


def _parsed(text: str) -> Condition | SelectorError:
    try:
        return parse(text)
    except SelectorError as error:
        return error
