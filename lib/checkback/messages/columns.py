"""Types of the fields that several messages have, with their limits and what `/openapi.json` says of them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from checkback.messages import limits

QueueId = Annotated[int, Meta(ge=0, le=limits.INT_MAX, description="half queue")]
Offset = Annotated[int, Meta(ge=0, le=limits.LONG_MAX, description="offset in the half queue")]
TransactionId = Annotated[
    str, Meta(min_length=1, max_length=limits.TRANSACTION_ID_MAX, description="the producer's name of it")
]
# Patterns are checked by `names`: Python's $ also matches before a line break.
Group = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.GROUP_MAX,
        description="the sender's producer group",
        extra_json_schema={"pattern": "^[a-zA-Z0-9_-]+$"},
    ),
]
Topic = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.TOPIC_MAX,
        description="topic it is meant for",
        extra_json_schema={"pattern": "^[a-zA-Z0-9-][a-zA-Z0-9_-]*$"},
    ),
]
Born = Annotated[int, Meta(ge=0, le=limits.MS_MAX, description="ms since the epoch, by the sender's clock")]
BornOrNow = Annotated[
    Annotated[int, Meta(ge=0, le=limits.MS_MAX)] | None, Meta(description="ms since the epoch; null = when it came")
]
