"""What a listener says of a message (ConsumeConcurrentlyStatus of RocketMQ)."""

from __future__ import annotations

from enum import Enum


class ConsumeResult(Enum):
    """SUCCESS: it is consumed. RECONSUME_LATER: it is to be consumed again; an exception says the same."""

    SUCCESS = "SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
