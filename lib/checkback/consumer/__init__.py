"""Push consumers with groups, retries and dead letters, without Spark; readers of topics for Spark.

See docs/consumer.md. Names are those of RocketMQ's DefaultMQPushConsumer. They are imported lazily; only `read`,
`read_stream` and `create_views` import Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from checkback.errors import missing_module

if TYPE_CHECKING:
    from checkback.consumer.async_push_consumer import AsyncPushConsumer
    from checkback.consumer.message import ConsumeResult, MessageExt
    from checkback.consumer.metrics import ConsumerMetrics
    from checkback.consumer.push_consumer import PushConsumer
    from checkback.consumer.spark_reader import create_views, read, read_stream
    from checkback.consumer.sql_positions import SqlPositions
    from checkback.filter import MessageSelector, SelectorError

__all__ = [
    "AsyncPushConsumer",
    "ConsumeResult",
    "ConsumerMetrics",
    "MessageExt",
    "MessageSelector",
    "PushConsumer",
    "SelectorError",
    "SqlPositions",
    "create_views",
    "read",
    "read_stream",
]

_WHERE = {
    "AsyncPushConsumer": "checkback.consumer.async_push_consumer",
    "ConsumeResult": "checkback.consumer.message",
    "ConsumerMetrics": "checkback.consumer.metrics",
    "MessageExt": "checkback.consumer.message",
    "MessageSelector": "checkback.filter",
    "PushConsumer": "checkback.consumer.push_consumer",
    "SelectorError": "checkback.filter",
    "SqlPositions": "checkback.consumer.sql_positions",
    "create_views": "checkback.consumer.spark_reader",
    "read": "checkback.consumer.spark_reader",
    "read_stream": "checkback.consumer.spark_reader",
}
#: what brings the packages of a name, if it is not the extra `spark`
_EXTRAS = {"ConsumerMetrics": "metrics", "SqlPositions": "consumer"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_WHERE[name]), name)
    except ModuleNotFoundError as error:
        raise missing_module(error, _EXTRAS.get(name, "")) from error
