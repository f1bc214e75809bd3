"""MessageSelector: what it reads, of which tables, what it needs."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from checkback.errors import SelectorError
from checkback.filter import MessageSelector
from checkback.filter.arrow_mask import BatchColumns
from checkback.filter.conditions import Conditions
from filter.selectors import table

EU = MessageSelector.by_sql("region = 'eu' AND amount > 5")


class _Apart(BatchColumns):
    """As Spark's columns, which are not looked up once for all conditions."""

    shares = False


def _apart(selector: MessageSelector) -> None:
    batch = table([(None, None, None)]).to_batches()[0]
    Conditions(_Apart(batch), selector.text).delivered(selector.condition)


@pytest.mark.parametrize("text", [None, "", "*"])
def test_all_messages(text: str | None) -> None:
    selector = MessageSelector.by_tag(text)
    assert (selector.text, selector.type, selector.columns) == ("*", "TAG", ())
    rows = table([(None, None, None), ("A", None, None)])
    assert selector.mask(rows).to_pylist() == [True, True]
    assert selector.matches(tags=None)


@pytest.mark.parametrize("text", ["||", "||||"])
def test_no_tag(text: str) -> None:
    with pytest.raises(SelectorError, match="tag"):
        MessageSelector.by_tag(text)


def test_tags_are_trimmed_as_in_java() -> None:
    selector = MessageSelector.by_tag(" A\x01|| B\u00a0||*")
    assert [selector.matches(tags=tags) for tags in ("A", "B\u00a0", "B", "*", "C", "", None)] == [
        *[True, True, False, True, False, False, False]
    ]


def test_tags_and_keys_are_properties() -> None:
    selector = MessageSelector.by_sql("TAGS = 'A' AND KEYS CONTAINS 'k1'")
    assert selector.columns == ("keys", "tags")
    assert selector.matches(tags="A", keys="k0 k1")
    assert not selector.matches(properties={"TAGS": "A", "KEYS": "k1"})


def test_null_is_not_delivered() -> None:
    for text in ("a > 5", "NOT (a > 5)", "a = 'x'", "a <> 'x'", "a IN ('x')", "a NOT IN ('x')", "a", "NOT a"):
        assert not MessageSelector.by_sql(text).matches(properties={})
    assert MessageSelector.by_sql("a NOT CONTAINS 'x' OR TRUE").matches()


def test_an_error_ends_the_evaluation_but_comes_only_where_it_is_evaluated() -> None:
    message = {"a": "x", "b": "1"}
    delivered = {"b = 1 OR a > 5": True, "a > 5 OR b = 1": False, "b = 2 AND a > 5": False, "NOT (a > 5)": False}
    delivered["NOT (b = 2 AND a > 5)"] = True
    delivered["c > -(a > 5) OR TRUE"] = True  # without c the right side is not evaluated
    delivered["b > -(a > 5) OR TRUE"] = False
    delivered["NOT (a > 5 AND b = 2)"] = False
    for text, wanted in delivered.items():
        assert MessageSelector.by_sql(text).matches(properties=message) is wanted, text


def test_of_two_entries_the_first_counts() -> None:
    maps = pa.array([[("region", "eu"), ("amount", "7"), ("region", "us")]], pa.map_(pa.string(), pa.string()))
    rows = pa.table({"properties": maps})
    assert EU.mask(rows).to_pylist() == [True]


@pytest.mark.spark
def test_of_two_entries_the_first_counts_in_spark(spark: object, tmp_path: object) -> None:
    from pyspark.sql import SparkSession

    assert isinstance(spark, SparkSession)
    maps = pa.array([[("region", "eu"), ("amount", "7"), ("region", "us")]], pa.map_(pa.string(), pa.string()))
    ds.write_dataset(pa.table({"properties": maps}), str(tmp_path), format="parquet")
    assert spark.read.parquet(str(tmp_path)).where(EU.column()).count() == 1


def test_slices_chunks_null_maps_and_other_types() -> None:
    some = [{"region": "eu", "amount": str(number)} if number % 3 else None for number in range(40)]
    rows = table([(None, None, entries) for entries in some])
    expected = [EU.matches(properties=entries) for entries in some]
    assert any(expected)
    assert EU.mask(rows).to_pylist() == expected
    assert EU.mask(rows.slice(7, 20)).to_pylist() == expected[7:27]
    chunks = pa.concat_tables([rows.slice(30), rows.slice(0, 0), rows.slice(3, 5)])
    assert EU.mask(chunks).to_pylist() == expected[30:] + expected[3:8]
    assert EU.mask(rows.to_batches()[0].slice(5)).to_pylist() == expected[5:]
    assert EU.mask(rows.slice(0, 0)).to_pylist() == []
    for string in (pa.large_string(), pa.string_view()):
        maps = [None if entries is None else list(entries.items()) for entries in some]
        other = pa.table({"properties": pa.array(maps, pa.map_(string, string))})
        assert EU.mask(other).to_pylist() == expected
    tags = pa.table({"tags": pa.array(["A", None, "B", "A"]).dictionary_encode()})
    assert MessageSelector.by_tag("A").mask(tags).to_pylist() == [True, False, False, True]


def test_null_maps_that_hide_entries() -> None:
    """A null in a column of maps may have entries beneath."""
    maps = pa.MapArray.from_arrays(
        pa.array([0, 2, 4], pa.int32()),
        pa.array(["region", "amount"] * 2),
        pa.array(["eu", "7"] * 2),
        mask=pa.array([True, False]),
    )
    assert EU.mask(pa.table({"properties": maps})).to_pylist() == [False, True]


def test_a_dataset_is_filtered_as_it_is_read(tmp_path: object) -> None:
    rows = table([("A" if number % 2 else "B", None, {"region": "eu", "amount": str(number)}) for number in range(100)])
    ds.write_dataset(rows, str(tmp_path), format="parquet")
    dataset = ds.dataset(str(tmp_path))
    for selector, found in ((EU, 94), (MessageSelector.by_tag("A"), 50)):
        assert sum(batch.filter(selector.mask(batch)).num_rows for batch in dataset.to_batches()) == found


def test_too_many_conditions_for_a_column() -> None:
    text = "a > 1"
    for level in range(30):
        text = f"NOT ({text} AND b > {level})"
        text = f"({text} OR a > {level})"
    selector = MessageSelector.by_sql(text)
    with pytest.raises(SelectorError, match="conditions"):
        _apart(selector)
    some = [{"a": str(number % 7), "b": str(number % 5)} if number % 4 else {"a": "x"} for number in range(50)]
    rows = table([(None, None, entries) for entries in some])
    assert selector.mask(rows).to_pylist() == [selector.matches(properties=entries) for entries in some]


@pytest.mark.parametrize("innermost", ["-a IS NULL", "-a > 5", "a IS NULL", "a > 5"])
def test_deep_comparisons_take_no_longer_than_their_size(innermost: str) -> None:
    """Each asks true, false and error of its operands several times: 5 ** 90 without a memory of what was asked."""
    text = innermost
    for _ in range(90):
        text = f"({text}) = TRUE"
    selector = MessageSelector.by_sql(text)
    rows = table([(None, None, {"a": "7"}), (None, None, {"a": "x"}), (None, None, None)])
    expected = [selector.matches(properties=properties) for properties in ({"a": "7"}, {"a": "x"}, {})]
    assert selector.mask(rows).to_pylist() == expected
    if innermost.startswith("-"):
        _apart(selector)
    else:
        with pytest.raises(SelectorError, match="conditions"):
            _apart(selector)


def test_it_is_a_value() -> None:
    assert pickle.loads(pickle.dumps(EU)) == EU  # noqa: S301 - ours
    assert hash(EU) == hash(MessageSelector.by_sql(EU.text))
    assert MessageSelector.by_tag("A") != MessageSelector.by_tag("B")


@pytest.mark.processes
def test_neither_spark_nor_lark_is_needed_for_tags() -> None:
    code = """
import sys
sys.modules["lark"] = sys.modules["pyspark"] = None
from checkback.errors import CheckbackError
from checkback.filter import MessageSelector
from checkback.filter.arrow_mask import BatchColumns
from checkback.filter.conditions import Conditions
assert MessageSelector.by_tag("A").matches(tags="A")
try:
    MessageSelector.by_sql("a = 1")
except CheckbackError as error:
    print(error.exit_code, error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "2 the Python module lark is missing; install checkback[consumer]\n"
