"""matches, mask and column agree on every message."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from checkback.errors import SelectorError
from checkback.filter import MessageSelector, conditions
from filter.selectors import TEXTS, messages, selectors, table, texts

if TYPE_CHECKING:
    from pyspark.sql import Column

Message = tuple[str | None, str | None, dict[str, str] | None]


def parsed(text: str) -> MessageSelector | None:
    try:
        return MessageSelector.by_sql(text)
    except SelectorError:
        return None


def wanted(selector: MessageSelector, rows: list[Message]) -> list[bool]:
    return [selector.matches(tags=tags, properties=properties, keys=keys) for tags, keys, properties in rows]


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(text=selectors, rows=st.lists(messages, min_size=1, max_size=30))
def test_arrow_agrees(text: str, rows: list[Message]) -> None:
    selector = parsed(text)
    assume(selector is not None)
    assert selector is not None
    expected = wanted(selector, rows)
    assert selector.mask(table(rows)).to_pylist() == expected


@given(text=st.lists(texts.filter(lambda text: "|" not in text), max_size=4).map("||".join), rows=st.lists(messages))
def test_arrow_agrees_on_tags(text: str, rows: list[Message]) -> None:
    selector = MessageSelector.by_tag(f"A||{text}")
    assert selector.mask(table(rows)).to_pylist() == wanted(selector, rows)


@pytest.mark.spine("filters on Spark")
@pytest.mark.spark
def test_spark_agrees(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """150 selectors on a hundred messages, in one DataFrame."""
    monkeypatch.setattr(conditions, "SIZE_MAX", 40)  # Spark's optimizer takes seconds for one that is much larger
    tried: list[MessageSelector] = []
    rows: list[Message] = []
    columns: list[Column] = []

    @settings(max_examples=500, derandomize=True, database=None)  # as many as give 150 selectors, and not a test
    @given(text=selectors, row=messages)
    def collect(text: str, row: Message) -> None:
        selector = parsed(text)
        if selector is not None and len(columns) < 150 and selector not in tried:
            with suppress(SelectorError):
                columns.append(selector.column().alias(f"s{len(tried)}"))
                tried.append(selector)
        rows.append(row)

    collect()
    some = rows[:: len(rows) // 100]
    schema = "number int, tags string, keys string, properties map<string,string>"
    frame = spark.createDataFrame([(number, *row) for number, row in enumerate(some)], schema)
    tally: Counter[bool] = Counter()
    for number, *said in frame.select("number", *columns).collect():
        tags, keys, properties = some[number]
        expected = [selector.matches(tags=tags, properties=properties, keys=keys) for selector in tried]
        wrong = [
            (selector.text, some[number])
            for selector, one, other in zip(tried, said, expected, strict=True)
            if one is not other
        ]
        assert wrong == []
        tally.update(expected)
    assert len(tried) == 150
    assert min(tally[True], tally[False]) > 1000


NUMBERS = [
    *[f"{a} {b}" for a in ("a >=", "a <", "a =") for b in ("0", "5", "3000000000", "4.5", "1e300", "-0.5")],
    *["a > b", "a >= b", "a < b", "a <= b", "a BETWEEN b AND b", "a = TRUE", "a > -(b > 5) OR TRUE"],
]
PAIRS = [{"a": a, "b": b} for a in TEXTS for b in TEXTS] + [{"b": b} for b in TEXTS]


def test_arrow_reads_numbers_as_java() -> None:
    """Every text that Java might take as a number, compared in each of the three types and with each other."""
    rows: list[Message] = [(None, None, properties) for properties in PAIRS]
    for selector in map(MessageSelector.by_sql, NUMBERS):
        expected = wanted(selector, rows)
        assert selector.mask(table(rows)).to_pylist() == expected


@pytest.mark.spark
def test_spark_reads_numbers_as_java(spark: Any) -> None:
    tried = [MessageSelector.by_sql(text) for text in NUMBERS]
    frame = spark.createDataFrame(list(enumerate(PAIRS)), "number int, properties map<string,string>")
    columns = [selector.column().alias(f"s{number}") for number, selector in enumerate(tried)]
    for number, *said in frame.select("number", *columns).collect():
        assert said == [selector.matches(properties=PAIRS[number]) for selector in tried], PAIRS[number]
