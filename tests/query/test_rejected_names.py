"""Which transaction a rejected input names, whatever is wrong with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.query.answers import Answers
from checkback.query.engines.rejected_names import Names, names_in
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.query_times import append
from support.stories import DONE, Transaction, in_batches, write

if TYPE_CHECKING:
    from pathlib import Path

_WHOSE = '"transaction_id": "tx", "producer_group": "orders", "queue_id": 3, "queue_offset": 7'
_ALL = Names("tx", "orders", 3, 7)


@pytest.mark.parametrize(
    "raw",
    [
        f"{{{_WHOSE}}}",
        f"\ufeff {{\r\n{_WHOSE}\t}} ",
        f'{{"tags": "\\ud800", {_WHOSE}}}',
        f'{{"tags": "\x00", {_WHOSE}}}',
        f'{{"x": NaN, "y": -Infinity, "z": {"9" * 5000}, {_WHOSE}}}',
        f'{{"queue_offset": null, {_WHOSE}}}',
        f'{{"transaction_id": "other", {_WHOSE}}}',
        f"{{{_WHOSE}}} x",
        f'{{{_WHOSE}}}{{"transaction_id": "other"}}',
        f"{{{_WHOSE},}}",
        f'{{{_WHOSE}, "body": "eHh4',
        f'{{{_WHOSE}, transaction_id: "other"}}',
        f'{{{_WHOSE}, "x": {"[" * 100_000}',
        f'{{"properties": {{"transaction_id": "other", "queue_id": 1, "queue_offset": 2}}, {_WHOSE}}}',
        f'{{"properties": "{{\\"transaction_id\\": \\"other\\"}}", {_WHOSE}}}',
        '{"transaction\\u005fid": "t\\u0078", "producer_group": "orders", "queue_id": "3", "half_offset": "7"}',
    ],
)
def test_what_an_input_names_is_read_up_to_the_first_fault(raw: str) -> None:
    assert names_in(raw) == _ALL


@pytest.mark.parametrize(
    "raw",
    [
        *(None, "", "tx", "[]", "null", '"tx"', "{}", "{", "{}x", '{"transaction_id"', '{"transaction_id":'),
        *('{"transaction_id": "t', '{"transaction_id": ["tx"]}', '{"transaction_id": null}', '{"TRANSACTION_ID": "t"}'),
        *("{'transaction_id': 'tx'}", '{transaction_id: "tx"}', '{"transaction_id": "\\ud800"}', f"{{x, {_WHOSE}}}"),
        *(f"[{{{_WHOSE}}}]", f"x {{{_WHOSE}}}", f'{{"x": {{{_WHOSE}}}}}', '{"queue_offset": 7', '{"queue_offset": 7x'),
        *('{"queue_id": 3.0}', '{"queue_id": 2147483648}', '{"half_offset": 9223372036854775808}'),
        '{"queue_id": true, "half_offset": 1e1, "queue_offset": "1\\n"}',
    ],
)  # fmt: skip
def test_what_it_does_not_tell_of_itself_is_not_guessed(raw: str | None) -> None:
    assert names_in(raw) == Names()


_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["\ud800", "}"])
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)


@given(
    fields=st.dictionaries(st.sampled_from([*Names._fields, "half_offset", "x", 'a"\\']), _VALUES | st.integers(0, 99)),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    data=st.data(),
)
def test_part_of_an_input_names_nothing_that_the_whole_does_not(
    fields: dict[str, Any], indent: int | None, ascii_only: bool, data: st.DataObject
) -> None:
    """Whatever follows it."""
    raw = json.dumps(fields, indent=indent, ensure_ascii=ascii_only)
    whole = names_in(raw)
    for name in ("transaction_id", "producer_group"):
        value = fields.get(name)
        if isinstance(value, str) and "\ud800" not in value:
            assert getattr(whole, name) == value
    if type(offset := fields.get("queue_offset")) is int and abs(offset) < 2**63:
        assert whole.queue_offset == offset
    assert names_in(raw + data.draw(st.text(max_size=3))) == whole
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    part = names_in(cut)
    allowed = {name: {None, value} for name, value in whole._asdict().items()}
    allowed["queue_offset"].add(names_in(json.dumps({"half_offset": fields.get("half_offset")})).queue_offset)
    for name, value in part._asdict().items():
        assert value in allowed[name], (name, cut)


def _rejected(settings: Settings, transaction_id: str, spark: Any, group: str | None = None) -> list[str]:
    events = Answers(settings, spark).lineage(transaction_id, group=group).to_pylist()
    return sorted(row["detail"].removeprefix("op not taken: ") for row in events if row["event"] == "REJECTED")


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def test_who_asks_for_a_transaction_is_told_of_its_rejected_inputs(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    """By their id, or by the offset of its half message; only those are parsed that may be found."""
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    halves = [Transaction(3, 7).half(), Transaction(3, 12).half(), Transaction(3, 4).half()]
    halves += [Transaction(3, offset).half(transaction_id="often") for offset in (20, 21, 22)]
    halves += [Transaction(4, offset).half(transaction_id="twice") for offset in (30, 31)]
    write(None, Tables.of(settings.storage), in_batches(halves)[0])
    raws = {
        "surrogate": '{"tags": "\\ud800", "transaction_id": "new", "producer_group": "orders"}',
        "trailing": '{"transaction_id": "new", "producer_group": "orders"} x',
        "NaN": '{"x": NaN, "transaction_id": "new", "producer_group": "orders"}',
        "cut": '{"transaction_id": "new", "producer_group": "pay", "body": "' + "x" * (1 << 20),
        "nested": '{"properties": {"transaction_id": "new"}}',
        "escaped": '{"transaction_id": "n\\u0065w"}',
        "longer": '{"transaction_id": "newer"}',
        "slash": '{"transaction_id": "a\\/b", "producer_group": "orders"}',
        "quote": '{"transaction_id": "a\\"b\\nc"}',
        "number": '{"transaction_id": 1.50}',
        "at 7": '{"queue_id": 3, "queue_offset": 7, "transaction_id": "nobody"} x',
        "at 07": '{"queue_id": "3", "queue_offset": "07"}',
        "elsewhere": '{"queue_id": 4, "half_offset": 7}',
        "at 21": '{"queue_id": 3, "queue_offset": 21, "x": NaN}',
        "at 30": '{"queue_id": 4, "queue_offset": 30} {}',
        "at 31": '{"queue_id": 4, "queue_offset": 31,}',
        "nothing": "tx-3-7, new",
    }
    rows = [{"source": "op", "raw": raw, "reason": reason, "rejected_at": DONE} for reason, raw in raws.items()]
    append(tmp_path, "rejected", [*rows, {"source": "op", "raw": None, "reason": "none", "rejected_at": DONE}])
    asked = {
        "new": ["NaN", "cut", "escaped", "surrogate", "trailing"],
        "newer": ["longer"],
        "a/b": ["slash"],
        'a"b\nc': ["quote"],
        "1.50": ["number"],
        "1.5": [],
        "tx-3-7": ["at 07", "at 7"],
        "nobody": ["at 7"],
        "tx-3-12": [],
        "often": ["at 21"],
        "twice": ["at 30", "at 31"],
    }
    assert {name: _rejected(settings, name, spark) for name in asked} == asked
    assert _rejected(settings, "new", spark, "pay") == ["cut"]
