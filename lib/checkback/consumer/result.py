"""What a listener says of a message (ConsumeConcurrentlyStatus of RocketMQ)."""

from __future__ import annotations

from enum import Enum

from checkback.errors import printable


class ConsumeResult(Enum):
    """SUCCESS: it is consumed. RECONSUME_LATER: it is to be consumed again; an exception says the same."""

    SUCCESS = "SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


def error_summary(error: BaseException) -> str:
    """An error's type and where it was raised, as ``ValueError at credits.py:12``; its text may quote a body.

    Printable: a file's name need not be UTF-8.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    summary = type(error).__name__
    if trace is not None:
        name = trace.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
        summary += f" at {name}:{trace.tb_lineno}"
    return printable(summary)
