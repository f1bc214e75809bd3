"""Names in messages: topics, groups, transaction ids, by TopicValidator and Validators (RocketMQ)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.messages.fields import NAME, Rejected, quoted, string
from checkback.messages.limits import GROUP_MAX, TOPIC_MAX, TRANSACTION_ID_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

#: TopicValidator.SYSTEM_TOPIC_SET; topics with one of SYSTEM_PREFIXES need no entry.
SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "SCHEDULE_TOPIC_XXXX_V2",
        "BenchmarkTest",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
SYSTEM_PREFIXES = ("rmq_sys_", "RMQ_SYS_")
#: Device names, reserved on Windows in upper and lower case (learn.microsoft.com, "Naming Files").
DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})


def is_group(text: str) -> bool:
    """True for a valid name of a producer group; see `is_consumer_group`."""
    return len(text) <= GROUP_MAX and NAME.fullmatch(text) is not None


def is_consumer_group(text: str) -> bool:
    """True for a valid consumer group name: it becomes a folder, as a topic does."""
    return is_group(text) and not_a_folder(text) is None


def is_topic(text: str) -> bool:
    """True for a valid, unreserved topic name."""
    return len(text) <= TOPIC_MAX and NAME.fullmatch(text) is not None and reserved(text) is None


def reserved(topic: str) -> str | None:
    """Why a valid topic name is reserved and takes no messages; None if it is not."""
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES):
        return "is a system topic"
    return not_a_folder(topic)


def not_a_folder(name: str) -> str | None:
    """Why no table's folder can have a topic's or a consumer group's valid name; None if it can.

    Delta and Spark ignore or reserve names that begin with an underscore or a dot (``_delta_log``, ``_change_data``,
    DeltaTableUtils.isHiddenDirectory, HadoopFSUtils.shouldFilterOutPath).
    """
    if name.startswith(("_", ".")):
        return "begins with _ or a dot, as what Delta and Spark keep for themselves"
    if name.casefold() in DEVICES:
        return "is a device's name on Windows"
    return None


def transaction_id_of(fields: Mapping[str, Any]) -> str:
    """The field transaction_id. Raises Rejected."""
    value = string(fields, "transaction_id")
    if not value:
        raise Rejected("transaction_id: empty")
    if len(value) > TRANSACTION_ID_MAX:
        raise Rejected(f"transaction_id: {len(value)} characters, over {TRANSACTION_ID_MAX}")
    return value


def name_of(fields: Mapping[str, Any], name: str, limit: int) -> str:
    """The field: a group or topic that meets Validators.checkGroup and checkTopic. Raises Rejected."""
    value = string(fields, name)
    if not value:
        raise Rejected(f"{name}: empty")
    if len(value) > limit:
        raise Rejected(f"{name}: {len(value)} characters, over {limit}")
    if not NAME.fullmatch(value):
        raise Rejected(f"{name}: {quoted(value)} has characters other than a-z, A-Z, 0-9, _ and -")
    return value


def topic_of(fields: Mapping[str, Any]) -> str:
    """The field real_topic: a valid, unreserved topic. Raises Rejected."""
    value = name_of(fields, "real_topic", TOPIC_MAX)
    why = reserved(value)
    if why is not None:
        raise Rejected(f"real_topic: {quoted(value)} {why}")
    return value
