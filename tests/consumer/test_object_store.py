"""A group on tables in an object store (a real S3 server)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from checkback.consumer import PushConsumer
from consumer.heard import Heard, until
from consumer.published import Published

if TYPE_CHECKING:
    from checkback.storage.tables import Tables

pytestmark = pytest.mark.slow


def test_two_members_consume_each_message_once(s3: Tables, running: list[PushConsumer]) -> None:
    from checkback.storage.files.object_store import options_of

    lake, first, second = Published(s3), Heard(), Heard()
    lake.publish({"pay": [lake.messages(64, range(64))]})

    def start(heard: Heard) -> PushConsumer:
        options = dict(options_of(s3.root))
        consumer = PushConsumer("g", s3.root, heard, options=options, threads=2, commit_interval=0.5)
        running.append(consumer.subscribe("pay"))
        return consumer.start()

    one = start(first)
    first.wait_for(*range(64))
    two = start(second)
    until(lambda: len(one.queues()) == len(two.queues()) == 32)
    lake.publish({"pay": [lake.messages(64, range(64))]})
    until(lambda: len(first.messages) + len(second.messages) >= 128)
    for consumer in running:
        consumer.shutdown(30)
    assert set((first.times + second.times).values()) == {1}
    again = Heard()
    lake.publish({"pay": [lake.messages(1)]})
    start(again)
    again.wait_for(128)
    assert again.offsets == [128]
