"""The bodies of requests and responses, as OpenAPI describes them.

`messages` does the actual validation; a test keeps both consistent.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from checkback.gateway.requests.batch_decoder import BATCH_MAX, REMARK_MAX
from checkback.messages import limits

_NAME = r"^[a-zA-Z0-9_-]+$"
_TOPIC = r"^[a-zA-Z0-9-][a-zA-Z0-9_-]*$"
_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_DURATION = "^[0-9]{1,9}(ms|s|m|h|d)$"
QueueId = Annotated[int, Field(strict=True, ge=0, le=limits.INT_MAX, description="half queue")]
Offset = Annotated[int, Field(strict=True, ge=0, le=limits.LONG_MAX, description="offset in the half queue")]
TransactionId = Annotated[
    str, Field(min_length=1, max_length=limits.TRANSACTION_ID_MAX, description="the producer's name of it")
]
Group = Annotated[str, Field(pattern=_NAME, max_length=limits.GROUP_MAX, description="the sender's producer group")]
Topic = Annotated[str, Field(pattern=_TOPIC, max_length=limits.TOPIC_MAX, description="topic it is meant for")]
Born = Annotated[
    int, Field(strict=True, ge=0, le=limits.MS_MAX, description="ms since the epoch, by the sender's clock")
]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class HalfMessage(_Request):
    """A half message: delivered once its transaction is committed."""

    transaction_id: TransactionId
    producer_group: Group
    real_topic: Topic
    body: Base64Bytes = Field(
        description="base64; at most 4 MiB decoded", json_schema_extra={"pattern": _BASE64, "contentEncoding": "base64"}
    )
    real_queue_id: Annotated[int, Field(strict=True, ge=0, le=limits.INT_MAX)] | None = Field(
        default=None,
        description="queue of the real topic; null = CRC-32 of ordering_key, or else of transaction_id, modulo 64",
    )
    ordering_key: Annotated[str, Field(min_length=1, max_length=limits.ORDERING_KEY_MAX)] | None = Field(
        default=None, description="messages with the same one go to the same queue; not with real_queue_id"
    )
    tags: str | None = Field(default=None, description="RocketMQ's TAGS")
    keys: str | None = Field(default=None, description="RocketMQ's KEYS")
    properties: dict[str, str] | None = Field(default={}, description="at most 32 KiB with tags and keys")
    born_timestamp: Born | None = Field(default=None, description="ms since the epoch; null = when it came")
    check_immunity_s: Annotated[int, Field(strict=True, le=limits.INT_MAX)] | None = Field(
        default=None, description="seconds without checks; null or negative = transaction.timeout"
    )
    delay_level: Annotated[int, Field(strict=True)] | None = Field(
        default=None,
        description="RocketMQ's level, 1 to 18 (more is 18); at most one of delay_level, delay, deliver_at",
    )
    delay: (
        Annotated[int, Field(strict=True, ge=0, le=limits.MS_MAX)] | Annotated[str, Field(pattern=_DURATION)] | None
    ) = Field(default=None, description="from COMMIT to delivery: ms, or text such as 30s; at most delay.max")
    deliver_at: Annotated[int, Field(strict=True, ge=0, le=limits.MS_MAX)] | None = Field(
        default=None, description="earliest delivery, ms since the epoch; at most delay.max from now"
    )


class Halves(_Request):
    """Half messages, accepted or refused individually."""

    messages: list[HalfMessage] = Field(min_length=1, max_length=BATCH_MAX)


class Op(_Request):
    """The end of a transaction."""

    queue_id: QueueId
    half_offset: Offset = Field(description="queue_offset of the half message that it ends")
    transaction_id: TransactionId
    producer_group: Group
    state: Literal["COMMIT", "ROLLBACK"]
    remark: str | None = Field(default=None, max_length=REMARK_MAX, description="free text")
    born_timestamp: Born | None = Field(default=None, description="ms since the epoch; null = when it came")


class Ops(_Request):
    """Ops, accepted or refused individually."""

    ops: list[Op] = Field(min_length=1, max_length=BATCH_MAX)


class Stored(BaseModel):
    """The half message is in the table."""

    transaction_id: TransactionId
    queue_id: QueueId
    queue_offset: Offset


class Ended(BaseModel):
    """The op is in the table."""

    transaction_id: TransactionId
    queue_id: QueueId
    queue_offset: Offset
    state: Literal["COMMIT", "ROLLBACK"]
    repeated: bool = Field(description="it had come before; nothing new was stored")


class Problem(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="what a program branches on")


class StoredOne(Stored):
    """One of several half messages is in the table."""

    status: Literal[200]


class EndedOne(Ended):
    """One of several ops is in the table."""

    status: Literal[200]


class StoredResults(BaseModel):
    """The result of each half message, in order."""

    results: list[StoredOne | Problem]


class EndedResults(BaseModel):
    """The result of each op, in order."""

    results: list[EndedOne | Problem]


class Transaction(BaseModel):
    """The state of a transaction."""

    transaction_id: TransactionId
    producer_group: Group
    real_topic: Topic
    queue_id: QueueId
    queue_offset: Offset
    state: Literal["PENDING", "COMMIT", "ROLLBACK", "DISCARD", "CANCEL"] = Field(
        description="the last decision; before it the first op, or PENDING"
    )
    reason: str | None = Field(description="CHECK_MAX or EXPIRED for a DISCARD")
    check_times: int = Field(description="checks sent so far")
    born_timestamp: Born
    decided_at: int | None = Field(description="ms since the epoch; null = not decided yet")
    deliver_at: int | None = Field(description="of a COMMIT with a delay: when it is delivered, ms since the epoch")
    delivered_at: int | None = Field(description="when it was delivered then; null = not yet")


class Health(BaseModel):
    """The health of the gateway, and how far its commits to the tables are behind its journal."""

    status: Literal["ok"]
    journal_messages: Annotated[int, Field(description="acknowledged and not in the tables yet")] = 0
    behind_seconds: Annotated[float, Field(description="age of the oldest of them")] = 0.0
