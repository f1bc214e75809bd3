"""Names in messages: topics, groups, transaction ids, by TopicValidator and Validators (RocketMQ)."""

from __future__ import annotations

from functools import lru_cache

from checkback.messages.fields import NAME, MessageRejectedError, quoted
from checkback.messages.limits import GROUP_MAX, TOPIC_MAX

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


def refuse_group(name: str) -> None:
    """Raise MessageRejectedError for a producer group's name against Validators.checkGroup, whatever its length."""
    why = _other_characters(name)
    if why is not None:
        raise MessageRejectedError(f"producer_group: {why}")


def refuse_topic(name: str) -> None:
    """Raise MessageRejectedError for a real_topic that is reserved or against Validators.checkTopic.

    Its length is not checked.
    """
    why = _unfit_topic(name)
    if why is not None:
        raise MessageRejectedError(f"real_topic: {why}")


# Most messages have one of few names, and a name has at most TOPIC_MAX characters.


@lru_cache(1024)
def _other_characters(name: str) -> str | None:
    return None if NAME.fullmatch(name) else f"{quoted(name)} has characters other than a-z, A-Z, 0-9, _ and -"


@lru_cache(1024)
def _unfit_topic(name: str) -> str | None:
    why = reserved(name)
    return _other_characters(name) or (f"{quoted(name)} {why}" if why else None)
