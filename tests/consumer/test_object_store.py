"""A group on tables in an object store (a real S3 server)."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from checkback.consumer import PushConsumer
from checkback.consumer.group.group_table import GroupTable
from checkback.settings import Storage
from checkback.storage.tables import Tables
from consumer.heard import PATIENCE_S, Heard, until
from consumer.published import Published
from support.fault_proxy import fault_proxy, hold, release
from support.s3_server import options

pytestmark = pytest.mark.slow


def test_two_members_consume_each_message_once(s3: Tables, running: list[PushConsumer]) -> None:
    from checkback.storage.files.object_store import options_of

    lake, first, second = Published(s3), Heard(), Heard()
    lake.publish({"pay": [lake.messages(64, range(64))]})

    def start(heard: Heard) -> PushConsumer:
        options = dict(options_of(s3.root))
        consumer = PushConsumer("g", s3.root, heard, options=options, threads=2, commit_interval=timedelta(seconds=0.5))
        running.append(consumer.subscribe("pay"))
        return consumer.start()

    one = start(first)
    first.wait_for(*range(64))
    two = start(second)
    until(lambda: len(one.queues()) == len(two.queues()) == 32)
    lake.publish({"pay": [lake.messages(64, range(64))]})
    until(lambda: len(first.messages) + len(second.messages) >= 128)
    for consumer in running:
        consumer.close(timedelta(seconds=30))
    assert set((first.times + second.times).values()) == {1}
    again = Heard()
    lake.publish({"pay": [lake.messages(1)]})
    start(again)
    again.wait_for(128)
    assert again.offsets == [128]


@pytest.mark.processes
def test_a_store_that_does_not_answer_holds_up_the_shutdown_for_a_session(
    s3: Tables, s3_port: int, running: list[PushConsumer]
) -> None:
    """The client would ask again for minutes; the member leaves once there is an answer."""
    Published(s3).publish({"pay": [Published(s3).messages(1)]})
    with fault_proxy(s3_port) as port:
        own = options(port)
        consumer = (
            PushConsumer("g", s3.root, Heard(), options=own, threads=1, session_timeout=timedelta(seconds=5))
            .subscribe("pay")
            .start()
        )
        until(lambda: consumer.consumed == 1)
        hold(port, "consumer_groups", 1_000_000)
        ending = threading.Thread(target=consumer.close, args=(timedelta(seconds=0.1),))
        ending.start()
        ending.join(PATIENCE_S)
        ended = not ending.is_alive()
        release(port)
        ending.join()
        assert ended
        table = GroupTable(Tables.of(Storage.model_validate({"root": s3.root, "options": own})), "g")

        def has_left() -> bool:
            table.refresh()
            return not table.state.members

        until(has_left)
