"""What a consumer imports late: a process that is forked has it already."""

from __future__ import annotations

import checkback.consumer.push_consumer
import checkback.filter
import consumer.published

__all__ = ["checkback", "consumer"]
