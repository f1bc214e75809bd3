"""Decodes JSON request bodies into messages, by the rules of `messages`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from checkback.gateway.problems import Problem
from checkback.gateway.requests import batch_decoder
from checkback.gateway.requests.batch_decoder import BATCH_MAX, HALF_FIELDS, OP_FIELDS, REMARK_MAX, RemarkedOp
from checkback.messages.fields import Rejected, refuse_unknown
from checkback.messages.half import half_of
from checkback.messages.op import op_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.messages.half import Half

#: bytes of a body that may have any number of values; and values of a larger one
_SMALL, VALUES_MAX = 256 << 10, 50_000
_TOO_MANY = Problem("unfit", f"over {VALUES_MAX:,} values in one body: divide it")


def too_many_values(body: bytes) -> Problem | None:
    """A problem for a body that would hold the event loop for long: each value becomes an object.

    Commas and brackets are counted, in texts, too.
    """
    if len(body) <= _SMALL:
        return None
    content = np.frombuffer(body, np.uint8)
    count = sum(int(np.count_nonzero(content == mark)) for mark in b",[{")
    return _TOO_MANY if count > VALUES_MAX else None


def object_of(body: bytes) -> dict[str, Any] | Problem:
    """The JSON object of a body. orjson refuses invalid UTF-8, NaN and lone surrogates."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return Problem("malformed", f"not JSON: {error.msg} at character {error.pos}")
    if type(value) is not dict:
        return Problem("malformed", "not a JSON object")
    return value


def items_of(body: bytes, name: str) -> list[Any] | Problem:
    """The list ``name`` of a body's JSON object."""
    fields = object_of(body)
    if isinstance(fields, Problem):
        return fields
    try:
        refuse_unknown(fields, (name,))
    except Rejected as error:
        return _unfit(error)
    items = fields.get(name)
    if type(items) is not list:
        return Problem("malformed", f"{name}: {'missing' if items is None else 'not an array'}")
    if not 1 <= len(items) <= BATCH_MAX:
        return Problem("unfit", f"{name}: {len(items)} of them; 1 to {BATCH_MAX} fit in a request", {"field": name})
    return items


def half_of_body(body: bytes, now: int, committed: bool | None = None) -> Half | Problem:
    """The half message of a request, without its offset. ``now`` (ms): the default born_timestamp.

    ``committed``: True for a message without a transaction.
    """
    refusal = too_many_values(body)
    return refusal or batch_decoder.half(body, now, committed) or half(object_of(body), now, committed)


def halves_of_body(body: bytes, now: int, committed: bool | None = None) -> Sequence[Half | Problem] | Problem:
    """The half messages of a request, each validated individually."""
    taken = too_many_values(body) or batch_decoder.halves(body, now, committed)
    if taken is not None:
        return taken
    items = items_of(body, "messages")
    return items if isinstance(items, Problem) else [half(fields, now, committed) for fields in items]


def op_of_body(body: bytes, now: int) -> RemarkedOp | Problem:
    """The op of a request and its remark. ``now`` (ms): the default born_timestamp."""
    return too_many_values(body) or op(object_of(body), now)


def ops_of_body(body: bytes, now: int) -> Sequence[RemarkedOp | Problem] | Problem:
    """The ops of a request with their remarks, each validated individually."""
    taken = too_many_values(body) or batch_decoder.ops(body, now)
    if taken is not None:
        return taken
    items = items_of(body, "ops")
    return items if isinstance(items, Problem) else [op(fields, now) for fields in items]


def half(fields: object, now: int, committed: bool | None = None) -> Half | Problem:
    """A half message without its offset; ``fields``: also why there are none. ``now`` as in `half_of_body`."""
    if type(fields) is not dict:
        return fields if isinstance(fields, Problem) else Problem("malformed", "not a JSON object")
    try:
        refuse_unknown(fields, HALF_FIELDS)
        if fields.get("born_timestamp") is None:
            fields["born_timestamp"] = now
        return half_of({**fields, "committed": committed}, -1, -1)  # the route says it, not the message
    except Rejected as error:
        return _unfit(error)


def op(fields: object, now: int) -> RemarkedOp | Problem:
    """An op and its remark; ``fields``, ``now`` as in `half`."""
    if type(fields) is not dict:
        return fields if isinstance(fields, Problem) else Problem("malformed", "not a JSON object")
    try:
        refuse_unknown(fields, OP_FIELDS)
        if fields.get("born_timestamp") is None:
            fields["born_timestamp"] = now
        remark = fields.get("remark")
        if remark is not None and (type(remark) is not str or len(remark) > REMARK_MAX):
            raise Rejected(f"remark: no string of at most {REMARK_MAX} characters")  # noqa: TRY301
        return op_of(fields), remark
    except Rejected as error:
        return _unfit(error)


def _unfit(error: Rejected) -> Problem:
    return Problem("unfit", error.reason, {"field": error.reason.partition(":")[0]})
