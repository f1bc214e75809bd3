"""Formats and validation of half messages and ops.

The limits are RocketMQ's: TopicValidator and Validators (names), MessageDecoder and MessageStoreConfig (sizes),
TransactionalMessageServiceImpl and TransactionalMessageUtil (immunity, batched ops). No Spark, no clock: every way in
(gateway, files, Kafka) uses these rules.
"""

from checkback.messages.fields import MessageRejectedError
from checkback.messages.half import Half, parse_half
from checkback.messages.op import Op, parse_ops

__all__ = ["Half", "MessageRejectedError", "Op", "parse_half", "parse_ops"]
