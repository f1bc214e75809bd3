"""RocketMQ's message filters: tags and SQL92, for one message, Spark and Arrow (docs/consumer.md)."""

from checkback.errors import SelectorError
from checkback.filter.message_selector import MessageSelector

__all__ = ["MessageSelector", "SelectorError"]
