"""Which rows an erasure concerns, and what is left of them. Pure: Arrow tables in, tables and masks out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.errors import SettingsError
from checkback.filter import MessageSelector
from checkback.messages.half import FIRST_PLACE, RESUMED_FROM, parse_place
from checkback.messages.limits import RAW_MAX
from checkback.reconcile.ended_transactions import REPEATED, repeated
from checkback.storage.schemas import CONTENT, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

#: what names a message in every table
WHO = ("queue_id", "queue_offset", "transaction_id", "producer_group")
#: what a selection reads of it
SELECTED_BY = ("transaction_id", "producer_group", "tags", "keys", "properties", "erased_at")
#: the columns of `batches` that say which batches a row stands for
BATCH = ("batch_id", "batch_time", "first_batch_id", "first_batch_time")
_NONE, _KEYS = pa.scalar(""), " "
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
#: how many times JSON may be within JSON
_DEEPEST = 6
#: stands for bytes that are not UTF-8
_NO_TEXT, _LONGEST_CHARACTER = "\ufffd", 4
_NO_TEXTS = re.compile(f"{_NO_TEXT}+")
#: so near to its beginning an input's JSON begins
_HEADER = 16
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_QUOTED_OR_PREFIX = re.compile(r"'(?:[^']|'')*'|\bproperties\s*\.\s*")
_QUOTED_OR_PARENTHESIS = re.compile(r"'(?:[^']|'')*'|[()]")


@dataclass(frozen=True)
class Selection:
    """Messages by one of their keys, by their transaction, or by an SQL92 expression, and then of one group."""

    key: str | None = None
    transaction: str | None = None
    group: str | None = None
    where: MessageSelector | None = None

    @classmethod
    def of(cls, key: str | None, transaction: str | None, group: str | None, where: str | None) -> Selection:
        """The options of `checkback erase`. Raises SettingsError, SelectorError."""
        if sum(each is not None for each in (key, transaction, where)) != 1:
            raise SettingsError("say which messages", "--key, --transaction, --where", "give one of them")
        if "" in (key, transaction, group, where):
            raise SettingsError("is empty", "--key, --transaction, --group, --where", "say which messages")
        if where is None:
            return cls(key, transaction, group)
        if group is None:
            raise SettingsError("an expression selects of one producer group", "--where", "give --group, too")
        plain = _QUOTED_OR_PREFIX.sub(lambda found: found[0] if found[0].startswith("'") else "", where)
        # A filter of RocketMQ ends where it cannot go on; here the rest must not be ignored.
        if not _balanced(plain):
            raise SettingsError("its parentheses do not match", "--where", "close each that is open")
        return cls(group=group, where=MessageSelector.by_sql(f"({plain})"))

    def mask(self, rows: pa.Table) -> Mask:
        """Which rows are selected, and not erased yet. ``rows``: SELECTED_BY, `valid_texts`."""
        found = pc.is_null(rows.column("erased_at"))
        for name, wanted in (("transaction_id", self.transaction), ("producer_group", self.group)):
            if wanted is not None:
                found = pc.and_(found, pc.equal(pc.fill_null(rows.column(name), _NONE), wanted))
        if self.key is not None:
            # RocketMQ separates the keys of a message by spaces. A producer may have sent them as its property.
            sent = pc.map_lookup(rows.column("properties"), "KEYS", "first")
            columns = (pc.fill_null(each, _NONE) for each in (rows.column("keys"), sent))
            padded = pc.binary_join_element_wise(_NONE, *columns, _NONE, _KEYS)
            found = pc.and_(found, pc.match_substring(padded, f"{_KEYS}{self.key}{_KEYS}"))
        if self.where is not None:
            found = pc.and_(found, self.where.mask(rows))
        return _mask(found)

    def mask_rejected(self, rows: pa.Table, messages: pa.Table) -> Mask:
        """Which rows of `rejected` have, or may have, what is selected. ``rows``: source, file, raw, reason, erased_at.

        Inputs may have any form: those that have the key or the transaction id anywhere, as a word, whoever's they are,
        also with escapes of JSON, or in another encoding than UTF-8; and all of which only the first part is known; and
        those at the offset of one of these ``messages`` (WHO). Not ops of the tables, which have no content: without
        them a rebuild takes what was rejected again.
        """
        there = _mask(pc.is_null(rows.column("erased_at")))
        again = repeated(rows).append_column("row", pa.array(np.arange(rows.num_rows)))
        places = list(WHO[:2])
        again = again.join(messages.group_by(places).aggregate([]), places, join_type="left semi")
        found = self._mask_texts(rows)
        found[again.column("row").to_numpy()] = True
        return np.logical_and(found, there)

    def _mask_texts(self, rows: pa.Table) -> Mask:
        """Which rows of `rejected` have, or may have, what is selected, by their texts."""
        texts = [text or "" for text in rows.column("raw").to_pylist()]
        of_table = pc.and_(pc.equal(pc.fill_null(rows.column("source"), _NONE), "op"), pc.is_null(rows.column("file")))
        word = self.key or self.transaction
        if word is not None:
            pattern = _word(word)
            found: Mask = np.array([_may_have(text, pattern) for text in texts], bool)
            return found & ~_mask(of_table)
        parsed = [(place, message) for place, text in enumerate(texts) for message in _messages(text)]
        for _, message in parsed:
            message["producer_group"] = message["producer_group"] or self.group  # maybe that is why it was rejected
        schema = pa.schema([arrow_schema("half").field(name) for name in SELECTED_BY])
        selected = self.mask(pa.Table.from_pylist([message for _, message in parsed], schema))
        found = np.zeros(rows.num_rows, bool)
        found[[place for (place, _), mine in zip(parsed, selected, strict=True) if mine]] = True
        return found


def _balanced(text: str) -> bool:
    steps = ({"(": 1, ")": -1}.get(found[0], 0) for found in _QUOTED_OR_PARENTHESIS.finditer(text))
    depths = list(accumulate(steps, initial=0))
    return min(depths) == 0 == depths[-1]


def _word(word: str) -> re.Pattern[str]:
    """The word, in any encoding: one _NO_TEXT, as `_may_have` leaves it, stands for any of its other characters.

    As many as there are in a row; the time is linear in the text.
    """
    other = rf"(?:{{}}|{_NO_TEXT}|(?<={_NO_TEXT}))"
    letters = (re.escape(each) if each.isascii() else other.format(re.escape(each)) for each in word)
    return re.compile(rf"(?<![\w-]){''.join(letters)}(?![\w-])")


def _may_have(text: str, pattern: re.Pattern[str]) -> bool:
    """True if the text has the pattern, also without its escapes of JSON, which may be within JSON; or if it was cut.

    It need not be whole JSON. One that has escapes within escapes beyond reason counts as having it.
    """
    if len(text.encode("utf-8", "replace")) > RAW_MAX - _LONGEST_CHARACTER:
        return True
    text = _NO_TEXTS.sub(_NO_TEXT, text.replace("\0", ""))  # UTF-16
    for _ in range(_DEEPEST):
        if pattern.search(text):
            return True
        plain = _joined(_ESCAPE.sub(_unescaped, text))
        if plain == text:
            return False
        text = plain
    return True


def _joined(text: str) -> str:
    """The text with its pairs of surrogates as the characters that they stand for."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _CONTROLS.get(escape[2], escape[2])


def _messages(text: str) -> list[dict[str, Any]]:
    """The messages of an input by the fields by which they are selected; none if it is not JSON.

    Before it there may be a byte order mark, or the header of a schema registry.
    """
    for start in (place for place, letter in enumerate(text[:_HEADER]) if letter in "{["):
        try:
            found = json.loads(text[start:])
        except (ValueError, RecursionError):
            continue
        return [_message(each) for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)]
    return []


def _message(found: Mapping[str, Any]) -> dict[str, Any]:
    properties = found.get("properties")
    pairs = {str(name): str(value) for name, value in properties.items()} if isinstance(properties, dict) else {}
    texts = {name: _text(found.get(name)) for name in SELECTED_BY[:4]}
    for name in ("tags", "keys"):
        texts[name] = texts[name] or pairs.get(name.upper())
    return {**texts, "properties": [(_valid(name), _valid(value)) for name, value in pairs.items()]}


def _text(value: object) -> str | None:
    if isinstance(value, list):
        value = _KEYS.join(map(str, value))
    return None if value is None else _valid(str(value))


def _valid(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def keyed(rows: pa.Table, messages: pa.Table) -> Mask:
    """Which rows are of these messages, and not erased yet. ``rows``: WHO, erased_at; ``messages``: WHO."""
    numbered = named(rows).append_column("row", pa.array(np.arange(rows.num_rows)))
    found = numbered.join(named(messages).group_by(list(WHO)).aggregate([]), list(WHO), join_type="left semi")
    mask = np.zeros(rows.num_rows, bool)
    mask[found.column("row").to_numpy()] = True
    there = _mask(pc.is_null(rows.column("erased_at")))
    return np.logical_and(mask, there)


def _mask(values: pa.Array | pa.ChunkedArray) -> Mask:
    found: Mask = np.asarray(values)
    return found


def named(rows: pa.Table) -> pa.Table:
    """WHO without nulls, which equal nothing."""
    schema = arrow_schema("half")
    columns = [
        pc.fill_null(rows.column(name), pa.scalar("" if at > 1 else -1, schema.field(name).type))
        for at, name in enumerate(WHO)
    ]
    return pa.table(columns, names=list(WHO))


def erased(rows: pa.Table, mask: Mask, at: pa.Scalar) -> pa.Table:
    """The rows with those of the mask emptied: of CONTENT, or `raw`, and ``erased_at`` set.

    What is left of properties says of which discarded message this one was made. A reason, which may quote what is
    erased, is left if it only names an offset; of `dead_letters` it has nothing of the message.
    """
    number = rows.num_rows
    for name in (*CONTENT, "raw"):
        index = rows.schema.get_field_index(name)
        if index < 0:
            continue
        column = rows.column(index)
        if name == "properties":
            origins = [_origin(each) for each in column.filter(pa.array(mask)).to_pylist()]
            column = pa.chunked_array([*column.chunks, pa.array(origins, column.type)], column.type)
            taken = np.arange(number)
            taken[mask] = number + np.arange(len(origins))
            rows = rows.set_column(index, rows.schema.field(index), column.take(pa.array(taken)))
        else:
            rows = emptied(rows, name, mask)
    if "reason" in rows.schema.names and not {"dead_at", "discarded_at"} & {*rows.schema.names}:
        index, reasons = rows.schema.get_field_index("reason"), rows.column("reason")
        quotes = pc.and_(pa.array(mask), pc.invert(pc.fill_null(pc.match_substring_regex(reasons, REPEATED), False)))
        rows = rows.set_column(index, rows.schema.field(index), pc.if_else(quotes, "erased", reasons))
    index = rows.schema.get_field_index("erased_at")
    times = pc.if_else(pa.array(mask), at, rows.column(index))
    return rows.set_column(index, rows.schema.field(index), times)


def emptied(rows: pa.Table, name: str, mask: Mask) -> pa.Table:
    """The rows with nulls in a column of those of the mask."""
    field = rows.schema.field(name)
    # Not by `take`, which joins the chunks: bodies may be more than one can hold.
    left = pc.if_else(pa.array(mask), pa.scalar(None, field.type), rows.column(name))
    return rows.set_column(rows.schema.get_field_index(name), field, left)


def _origin(properties: Iterable[tuple[str, str]] | None) -> list[tuple[str, str]] | None:
    ours = (RESUMED_FROM, FIRST_PLACE)
    found = [(name, text) for name, text in properties or () if name in ours and parse_place(text or "") is not None]
    return found or None


def of_whole_batches(rows: pa.Table, time: str, batches: pa.Table) -> pa.Table:
    """The rows of batches that are complete, see `in_whole_batches`."""
    return rows.filter(pa.array(in_whole_batches(rows, time, batches)))


def in_whole_batches(rows: pa.Table, time: str, batches: pa.Table) -> Mask:
    """Mask of the rows of complete batches. ``rows``: batch_id, and ``time``, their batch's; ``batches``: BATCH.

    Not by the time alone: after the clock was set back, a batch under way may be earlier than the last complete one.
    """
    numbers, times = (rows.column(name).cast(pa.int64()).to_numpy() for name in ("batch_id", time))
    alone = pc.is_null(batches.column("first_batch_id"))
    columns = [batches.filter(alone).column(name).cast(pa.int64()).to_pylist() for name in BATCH[:2]]
    single = set(zip(*columns, strict=True))
    whole: Mask = np.array([each in single for each in zip(numbers.tolist(), times.tolist(), strict=True)], bool)
    runs = batches.filter(pc.invert(alone))
    for last, until, first, since in zip(
        *(runs.column(name).cast(pa.int64()).to_pylist() for name in BATCH), strict=True
    ):
        whole |= (numbers >= first) & (numbers <= last) & (times >= since) & (times <= until)
    return whole


def owed(halves: pa.Table, decisions: pa.Table, delivered: pa.Table, waiting: pa.Table) -> list[dict[str, Any]]:
    """The half messages that have not ended: WHO, and ``state``: pending, scheduled or unpublished.

    ``halves``, ``delivered``, ``waiting`` (in `unpublished`): WHO; ``decisions``: WHO, state, deliver_at. Where another
    transaction is decided at its offset, a half message is one that was rejected.
    """
    states: dict[tuple[Any, ...], str | None] = {}
    for row in decisions.to_pylist():
        name = tuple(row[column] for column in WHO)
        due = row["state"] == "COMMIT" and row["deliver_at"] is not None
        states[name] = "scheduled" if due and name not in states else None
    states |= dict.fromkeys(_names(delivered))
    states |= dict.fromkeys(_names(waiting), "unpublished")
    taken = {name[:2] for name in states}
    found = {
        name: states[name] if name in states else None if name[:2] in taken else "pending" for name in _names(halves)
    }
    return [{**dict(zip(WHO, name, strict=True)), "state": state} for name, state in found.items() if state is not None]


def _names(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(rows.column(name).to_pylist() for name in WHO), strict=True))
