"""Decodes request bodies: one message, or a batch of which each message is taken or refused by itself.

msgspec decodes a body in one go. Where it does not, the body is decoded into objects, and each message by the rules of
`messages`, which have the reasons for refusals: five times as slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import numpy as np
import orjson
from msgspec import Meta

from checkback.gateway.problems import Problem
from checkback.messages.fields import MessageRejectedError, message_of, refuse_unknown
from checkback.messages.half import HalfMessage, half_of
from checkback.messages.limits import BATCH_MAX, REMARK_MAX
from checkback.messages.op import OpMessage, named, op_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.messages.half import Half
    from checkback.messages.op import RemarkedOp

S = TypeVar("S", bound=msgspec.Struct)
#: bytes of a body that may have any number of values; and values of a larger one
_SMALL, VALUES_MAX = 256 << 10, 50_000
#: the problem of a larger one that has more
TOO_MANY = Problem("unfit", f"over {VALUES_MAX:,} values in one body: divide it")


class Halves(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Half messages, accepted or refused individually."""

    messages: Annotated[list[HalfMessage], Meta(min_length=1, max_length=BATCH_MAX)]


class Op(OpMessage):
    """The end of a transaction."""

    remark: Annotated[
        Annotated[str, Meta(max_length=REMARK_MAX)] | None,
        Meta(description="free text; without one the request's traceparent"),
    ] = None


class Ops(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Ops, accepted or refused individually."""

    ops: Annotated[list[Op], Meta(min_length=1, max_length=BATCH_MAX)]


_HALF, _HALVES = msgspec.json.Decoder(HalfMessage), msgspec.json.Decoder(Halves)
_OP, _OPS = msgspec.json.Decoder(Op), msgspec.json.Decoder(Ops)


def half_of_body(body: bytes, now: int, committed: bool | None = None) -> Half | Problem:
    """The half message of a request, without its offset. ``now`` (ms): the default born_timestamp.

    ``committed``: True for a message without a transaction.
    """
    decoded = _decoded(body, _HALF)
    return _half(_checked(_object(body), HalfMessage) if decoded is None else decoded, now, committed)


def halves_of_body(body: bytes, now: int, committed: bool | None = None) -> Sequence[Half | Problem] | Problem:
    """The half messages of a request, each validated individually."""
    decoded = _decoded(body, _HALVES)
    messages = decoded.messages if isinstance(decoded, Halves) else decoded or _each(body, "messages", HalfMessage)
    return messages if isinstance(messages, Problem) else [_half(one, now, committed) for one in messages]


def op_of_body(body: bytes, now: int) -> RemarkedOp | Problem:
    """The op of a request and its remark. ``now`` (ms): the default born_timestamp."""
    decoded = _decoded(body, _OP)
    return _op(_checked(_object(body), Op) if decoded is None else decoded, now)


def ops_of_body(body: bytes, now: int) -> Sequence[RemarkedOp | Problem] | Problem:
    """The ops of a request with their remarks, each validated individually."""
    decoded = _decoded(body, _OPS)
    messages = decoded.ops if isinstance(decoded, Ops) else decoded or _each(body, "ops", Op)
    return messages if isinstance(messages, Problem) else [_op(one, now) for one in messages]


def _half(sent: HalfMessage | Problem, now: int, committed: bool | None) -> Half | Problem:
    if isinstance(sent, Problem):
        return sent
    try:
        return half_of(sent, now if sent.born_timestamp is None else sent.born_timestamp, committed)
    except MessageRejectedError as error:
        return unfit(error)


def _op(sent: Op | Problem, now: int) -> RemarkedOp | Problem:
    if isinstance(sent, Problem):
        return sent
    try:
        return op_of(sent, now if sent.born_timestamp is None else sent.born_timestamp), sent.remark
    except MessageRejectedError as error:
        return unfit(error)


def _decoded(body: bytes, decoder: msgspec.json.Decoder[S]) -> S | Problem | None:
    """The body; a problem if it would take too long; None if it is not as it should be."""
    if too_many_values(body):
        return TOO_MANY
    try:
        return decoder.decode(body) if is_utf8(body) else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _each(body: bytes, name: str, message: type[S]) -> Sequence[S | Problem] | Problem:
    """The messages of a body that could not be decoded in one go."""
    items = _items(body, name)
    return items if isinstance(items, Problem) else [_checked(item, message) for item in items]


def _checked(fields: object, message: type[S]) -> S | Problem:
    """A message; ``fields``: also why there are none."""
    if type(fields) is not dict:
        return fields if isinstance(fields, Problem) else Problem("malformed", "not a JSON object")
    try:
        return message_of(named(fields) if message is Op else fields, message)
    except MessageRejectedError as error:
        return unfit(error)


def _object(body: bytes) -> dict[str, Any] | Problem:
    """The JSON object of a body. orjson refuses invalid UTF-8, NaN and lone surrogates."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return Problem("malformed", f"not JSON: {error.msg} at character {error.pos}")
    if type(value) is not dict:
        return Problem("malformed", "not a JSON object")
    return value


def _items(body: bytes, name: str) -> list[Any] | Problem:
    """The list ``name`` of a body's JSON object."""
    fields = _object(body)
    if isinstance(fields, Problem):
        return fields
    try:
        refuse_unknown(fields, (name,))
    except MessageRejectedError as error:
        return unfit(error)
    items = fields.get(name)
    if type(items) is not list:
        return Problem("malformed", f"{name}: {'missing' if items is None else 'not an array'}")
    if not 1 <= len(items) <= BATCH_MAX:
        return Problem("unfit", f"{name}: {len(items)} of them; 1 to {BATCH_MAX} fit in a request", {"field": name})
    return items


def too_many_values(body: bytes) -> bool:
    """Would the body hold the event loop for long, because each value becomes an object?

    Commas and brackets are counted, in texts, too.
    """
    if len(body) <= _SMALL:
        return False
    content = np.frombuffer(body, np.uint8)
    return sum(int(np.count_nonzero(content == mark)) for mark in b",[{") > VALUES_MAX


def is_utf8(body: bytes) -> bool:
    """Is all of the body UTF-8? msgspec does not validate unknown fields, which it skips."""
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def unfit(error: MessageRejectedError) -> Problem:
    """The problem of a message that is rejected."""
    return Problem("unfit", error.reason, {"field": error.reason.partition(":")[0]})
