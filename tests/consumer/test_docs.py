"""What docs/consumer.md prints is run."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from checkback.consumer import ConsumeResult, PushConsumer, SqlPositions
from checkback.consumer.group.group_table import GroupTable
from consumer.heard import until
from docs.blocks import blocks

if TYPE_CHECKING:
    from consumer.published import Published


def _code(heading: str, page: str = "docs/consumer.md") -> str:
    return next(block.text for block in blocks("python") if (block.page, block.heading) == (page, heading))


def test_the_first_consumer(lake: Published, capsys: pytest.CaptureFixture[str]) -> None:
    lake.publish({"orders": [lake.messages(1, tags="paid"), lake.messages(1, tags="other")]})
    properties = [("region", "eu"), ("amount", "101")]
    lake.publish({"refunds": [lake.messages(1, properties=properties), lake.messages(1)]})
    stop, printed = threading.Event(), ""

    def wait() -> None:
        nonlocal printed
        until(lambda: len(heard()) >= 2)
        stop.set()

    def heard() -> list[str]:
        nonlocal printed
        printed += capsys.readouterr().out
        return printed.splitlines()

    watch = threading.Thread(target=wait)
    watch.start()
    code = _code("Consuming a topic").replace("/data/checkback", lake.tables.root)
    assert "threading.Event().wait()" in code
    code = code.replace("threading.Event().wait()", "stop.wait(); signal.raise_signal(signal.SIGTERM)")
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit):
            exec(compile(code, "docs/consumer.md", "exec"), {"stop": stop})  # noqa: S102 - the page's own code
    finally:
        signal.signal(signal.SIGTERM, before)
    watch.join()
    assert GroupTable(lake.tables, "billing").state.members == {}
    assert sorted(line.split()[:2] for line in heard()) == [["orders", "paid"], ["refunds", "None"]]


def test_exactly_once(lake: Published, tmp_path: Path) -> None:
    account = sa.Table("account", sa.MetaData(), sa.Column("id", sa.Integer), sa.Column("balance", sa.Integer))
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'books'}")
    account.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(account).values(id=1, balance=5))
    lake.publish({"orders": [lake.messages(3, body=json.dumps({"id": 1, "sum": 2}).encode())]})
    made: list[PushConsumer] = []

    def consumer(*arguments: Any, **options: Any) -> PushConsumer:
        made.append(PushConsumer(*arguments, **options))
        return made[0]

    names = {"json": json, "update": sa.update, "account": account, "root": lake.tables.root}
    names |= {"create_engine": lambda _, **_options: engine, "ConsumeResult": ConsumeResult}
    names |= {"PushConsumer": consumer, "SqlPositions": SqlPositions}
    exec(compile(_code("Exactly once"), "docs/consumer.md", "exec"), names)  # noqa: S102 - the page's own code
    with made[0].subscribe("orders"):
        until(lambda: made[0].consumed == 3)
    with engine.begin() as connection:
        assert connection.execute(sa.select(account.c.balance)).scalar() == 11


def test_a_listener_moved_from_rocketmq(lake: Published) -> None:
    shipped: list[tuple[str, bytes]] = []

    class Orders:
        def ship(self, key: str, body: bytes) -> bool:
            shipped.append((key, body))
            return True

    lake.publish({"orders": [lake.messages(2, tags="paid")]})
    code = _code("Moving a listener", "docs/rocketmq.md").replace('start_from="last"', 'start_from="first"')
    assert "threading.Event().wait()" in code
    code = code.replace("threading.Event().wait()", "until(lambda: len(shipped) == 2)")
    names: dict[str, Any] = {"orders": Orders(), "root": lake.tables.root, "until": until, "shipped": shipped}
    exec(compile(code, "docs/rocketmq.md", "exec"), names)  # noqa: S102 - the page's own code
    assert names["consumer"].stopping
    assert sorted(shipped) == [("key-0", b"body-0"), ("key-1", b"body-1")]
