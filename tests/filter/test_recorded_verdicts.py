"""What the real classes of RocketMQ 5.3.3 said of 4,400 filters (tests/data/rocketmq-filter)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkback.filter import MessageSelector, SelectorError
from checkback.filter.message_selector import tags_of
from checkback.filter.numbers import EvaluationError
from filter.selectors import table

DATA = Path(__file__).parent.parent / "data" / "rocketmq-filter"
CASES: list[dict[str, Any]] = [json.loads(line) for line in (DATA / "cases.jsonl").read_text().splitlines()]
SQL = [case for case in CASES if "expr" in case]
TAGS = [case for case in CASES if "tags_expr" in case]
_SAID: dict[Any, str] = {True: "true", False: "false", None: "null"}


def verdict(text: str, properties: dict[str, str]) -> str:
    try:
        selector = MessageSelector.by_sql(text)
    except SelectorError as error:
        return "syntax" if error.text == text and 0 <= error.position <= len(text) + 1 else f"wrong place: {error}"
    try:
        return _SAID[selector.condition.evaluate(properties.get)]
    except EvaluationError:
        return "error"


def test_there_are_cases() -> None:
    assert (len(SQL), len(TAGS)) == (4000, 400)
    assert {case["verdict"] for case in SQL} == {"true", "false", "null", "error", "syntax"}


def test_sql() -> None:
    wrong = [(case, said) for case in SQL if (said := verdict(case["expr"], case["properties"])) != case["verdict"]]
    assert wrong == []


@pytest.mark.slow
def test_sql_in_every_way() -> None:
    """One message at a time, and as a mask: delivered if true, and only then."""
    for case in SQL:
        if case["verdict"] == "syntax":
            continue
        selector = MessageSelector.by_sql(case["expr"])
        delivered = case["verdict"] == "true"
        rows = table([(None, None, case["properties"])])
        assert selector.matches(properties=case["properties"]) is delivered, case
        assert selector.mask(rows).to_pylist() == [delivered], case


def test_tags() -> None:
    for case in TAGS:
        selector = MessageSelector.by_tag(case["tags_expr"])
        delivered = case["verdict"] == "true"
        rows = table([(case.get("tag"), None, None)])
        tags = frozenset(case["tags"]) or (None if case["tags_expr"] in {"", "*"} else frozenset())
        assert tags_of(case["tags_expr"]) == tags, case
        assert selector.matches(tags=case.get("tag")) is delivered, case
        assert selector.mask(rows).to_pylist() == [delivered], case


@pytest.mark.spark
def test_spark(spark: Any) -> None:
    """As columns of one DataFrame: every 40th filter, on the messages of all of these."""
    cases = [case for case in SQL if case["verdict"] != "syntax"][::40]
    selectors = [MessageSelector.by_sql(case["expr"]) for case in cases]
    schema = "number int, tags string, keys string, properties map<string,string>"
    messages = spark.createDataFrame([(n, None, None, case["properties"]) for n, case in enumerate(cases)], schema)
    columns = [selector.column().alias(f"s{number}") for number, selector in enumerate(selectors)]
    for number, *said in messages.select("number", *columns).collect():
        wanted = [selector.matches(properties=cases[number]["properties"]) for selector in selectors]
        assert said == wanted
        assert said[number] is (cases[number]["verdict"] == "true")
