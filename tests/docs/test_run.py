"""What the pages print is run: curl and Python against a gateway, commands that need no Spark on small tables."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
from datetime import datetime, time, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.routing import Route

from checkback import Checkback
from checkback.cli import main
from checkback.consumer import ConsumeResult, PushConsumer
from checkback.consumer.group.group_reader import read_group
from checkback.consumer.group.group_state import GroupState, MessageQueue, QueueState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.position import QUEUES, Position
from checkback.producer import LocalTransactionState, Message, MessageApply, TransactionProducer, check_app, idempotent
from checkback.push.pushed_group import PushedGroup
from checkback.settings import Settings, Storage
from checkback.storage.tables import Tables
from checkback.storage.timestamps import time_of
from checkback.what_if.records import RECORDED
from consumer.heard import until
from consumer.published import START, Published
from docs.blocks import ROOT, Block, blocks
from docs.shell import SECRET, Call, check_checkback
from gateway.process import PATIENCE_S, Gateway, half, rows
from operate.fixtures import Lakehouse
from support.query_times import append, table
from support.standalone_cluster import Submitted, package, python_without_checkback
from support.stories import batch
from what_if.lake import write
from what_if.test_replay import LATE, LATE_TIMES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


PRINTED = "http://127.0.0.1:8900"
#: pages whose curl lines speak of half messages that were there before
_BEFORE = {"README.md": 1, "docs/gateway.md": 12, "docs/webhooks.md": 12}


def _calls(program: str, *pages: str) -> list[tuple[Block, Call]]:
    calls = [(block, Call.of(line)) for block in blocks("sh") for line in block.lines()]
    return [(block, call) for block, call in calls if call.program == program and (not pages or block.page in pages)]


def _commands(*names: str) -> list[Call]:
    """Checkback's calls of these commands, or of those of a noun, each once."""
    found = {
        json.dumps(call.arguments): call
        for _, call in _calls("checkback")
        if call.arguments[0] in names or " ".join(call.arguments[:2]) in names
    }
    return list(found.values())


def _gateway(page: str, root: Path) -> Gateway:
    """The gateway as the page starts it."""
    overrides = [
        each
        for _, call in _calls("checkback", page)
        if call.arguments[0] == "gateway"
        for each in check_checkback(call)[1]["overrides"] or ()
    ]
    return Gateway(root, *overrides)


@pytest.mark.processes
@pytest.mark.parametrize("page", sorted({block.page for block, _ in _calls("curl")}))
def test_curl(page: str, tmp_path: Path) -> None:
    """Each line in turn, on one gateway; where the page says what comes back, that does."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl here")
    with _gateway(page, tmp_path) as gateway:
        for number in range(_BEFORE.get(page, 0)):
            assert gateway.post("/v1/half", half(f"before-{number}")).status_code == 200
        said = []
        for _, call in _calls("curl", page):
            arguments = [word.replace(PRINTED, gateway.url) for word in call.arguments]
            assert arguments != call.arguments, "it is not for the gateway"
            done = subprocess.run(
                [curl, "--fail-with-body", "--silent", "--show-error", "--noproxy", "*", *arguments],
                check=False,
                capture_output=True,
                timeout=PATIENCE_S,
            )
            assert done.returncode == 0, (call.arguments, done.stdout, done.stderr)
            said.append(json.loads(done.stdout))
    printed = [line[2:] for block in blocks("sh") if block.page == page for line in block.text.splitlines()]
    told = [json.loads(line) for line in printed if line.startswith("{")]
    assert said[: len(told)] == told
    ended = any("/v1/op" in word for _, call in _calls("curl", page) for word in call.arguments)
    assert [row["state"] for row in rows(tmp_path, "op")] == ["COMMIT"] * ended


def _python(page: str, heading: str) -> Block:
    return next(block for block in blocks("python") if (block.page, block.heading) == (page, heading))


def _run(block: Block, names: dict[str, Any], **instead: str) -> dict[str, Any]:
    code = block.text
    for printed, here in instead.items():
        assert printed in code
        code = code.replace(printed, here)
    exec(compile(code, str(ROOT / block.page), "exec"), names)  # noqa: S102 - the page's own code
    return names


@pytest.mark.processes
def test_producer_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends to the gateway that the README starts, which keeps the half message and the op."""
    monkeypatch.chdir(tmp_path)
    with _gateway("README.md", tmp_path / "data") as gateway:
        instead = {PRINTED: gateway.url, "port=8901": "port=0"}
        names = _run(_python("README.md", "A producer"), {"__name__": "example"}, **instead)
    [sent], [ended] = rows(tmp_path / "data", "half"), rows(tmp_path / "data", "op")
    assert (sent["real_topic"], sent["body"]) == ("payments", b'{"amount": 42}')
    assert (ended["state"], ended["transaction_id"]) == ("COMMIT", sent["transaction_id"])
    place = sent["queue_id"], sent["queue_offset"]
    stored = Message("payments", b"").stored_at(*place, sent["producer_group"], sent["transaction_id"])
    assert names["barrier"].check(stored) is LocalTransactionState.COMMIT


def test_questions_of_the_readme(tmp_path: Path) -> None:
    Lakehouse(tmp_path, datetime.now(timezone.utc)).half(12, "transfer-7")
    block = _python("README.md", "The demonstration")
    cb = _run(block, {}, **{'"data/bank/data"': repr(str(tmp_path))})["cb"]
    assert cb.pending().to_pandas()["transaction_id"].to_list() == ["transfer-7"]
    assert cb.lineage("transfer-7").num_rows == 1


class _Book(dict[str, str]):
    """What docs/rocketmq.md calls `orders`."""

    def insert(self, order: str, transaction_id: str) -> None:
        self[transaction_id] = order


class _Named:
    """A message, or a check."""

    transaction_id = "order-4711"


class _Placed(NamedTuple):
    """A message, or a check, at a place."""

    transaction_id: str
    place: tuple[int, int]


class _Order(NamedTuple):
    place: tuple[int, int]


class _Orders(dict[str, _Order]):
    """What docs/producer.md calls `orders`."""

    def insert(self, _: str, transaction_id: str, place: tuple[int, int]) -> None:
        self[transaction_id] = _Order(place)


def test_listener_without_a_barrier_compares_places() -> None:
    names = {"orders": _Orders(), "TransactionListener": object, "LocalTransactionState": LocalTransactionState}
    listener: Any = _run(_python("docs/producer.md", "Half messages and transaction ids"), names)["Orders"]()
    acknowledged, other = _Placed("order-4711", (0, 1)), _Placed("order-4711", (1, 0))
    assert listener.check_local_transaction(acknowledged) is LocalTransactionState.UNKNOWN
    assert listener.execute_local_transaction(acknowledged, "shoes") is LocalTransactionState.COMMIT
    assert listener.check_local_transaction(acknowledged) is LocalTransactionState.COMMIT
    assert listener.check_local_transaction(other) is LocalTransactionState.ROLLBACK


def test_producer_of_several_gateways() -> None:
    """The line of the page is a producer with two gateways, neither of which is there."""
    block = _python("docs/producer.md", "Several gateways")
    names: dict[str, Any] = {"orders": None, "TOKEN": "t" * 16}
    made: list[TransactionProducer] = []
    names["TransactionProducer"] = lambda *given, **named: made.append(TransactionProducer(*given, **named))
    _run(block, names)
    [producer] = made
    producer.close()


def test_answers_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _replayed(tmp_path / "data")
    table(tmp_path / "data", "topics/payments")
    monkeypatch.chdir(tmp_path)
    asked, topic = (
        each
        for each in blocks("python")
        if (each.page, each.heading) == ("docs/inspect.md", "In Python") and not each.needs_spark
    )
    names = _run(asked, {}, **{'group="orders", ': ""})
    assert len(capsys.readouterr().out.splitlines()) == names["cb"].pending().num_rows
    _run(topic, {})
    assert "count_star()" in capsys.readouterr().out
    names = _run(_python("docs/inspect.md", "The audit in Python"), {})
    assert {"level", "promise", "finding"} <= set(names["cb"].findings().column_names)


def test_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the settings as the page has them, on a topic with a batch in progress."""
    bodies = [b'{"amount": 40, "account": "a"}', b'{"amount": 2, "account": "a"}', b"no JSON", b"{}"]
    append(tmp_path / "data", "half", [{"queue_id": 0, "queue_offset": 0}])
    batch_row = batch(1, datetime.now(timezone.utc))[1]
    append(tmp_path / "data", "batches", [batch_row])
    message = {"transaction_id": "order-1", "batch_id": 1, "published_at": batch_row["batch_time"]}
    rows = [message | {"half_queue_offset": number, "body": body} for number, body in enumerate(bodies)]
    append(tmp_path / "data", "topics/payments", [*rows[:3], rows[3] | {"batch_id": 2}])
    monkeypatch.chdir(tmp_path)
    [topics] = (
        block for block in blocks("yaml") if (block.page, block.heading) == ("docs/queries.md", "Querying topics")
    )
    (tmp_path / "topics.yml").write_text(topics.text)
    _run(_python("docs/queries.md", "DuckDB, polars, pandas"), {})
    said = capsys.readouterr().out
    assert "42" in said
    assert "is not JSON    1" in said
    names = _run(_python("docs/queries.md", "Other engines"), {})
    assert capsys.readouterr().out.count("order-1") == 3
    assert names["payments"].count_rows() == 4


def _listener() -> Any:
    return _run(_python("docs/rocketmq.md", "Moving a producer"), {"orders": _Book()})["Orders"]()


def test_listener_moved_from_rocketmq() -> None:
    listener = _listener()
    assert listener.check_local_transaction(_Named) is LocalTransactionState.UNKNOWN
    assert listener.execute_local_transaction(_Named, "shoes") is LocalTransactionState.COMMIT
    assert listener.check_local_transaction(_Named) is LocalTransactionState.COMMIT


def test_check_endpoint_in_an_application_of_ones_own() -> None:
    names = {"Starlette": Starlette, "Route": Route, "check_app": check_app}
    made = _run(_python("docs/producer.md", "The check endpoint"), names | {"orders": _listener(), "SECRET": SECRET})

    async def posted(path: str) -> int:
        transport = httpx.ASGITransport(made["app"])
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.post(path, json={})).status_code

    assert [asyncio.run(posted(path)) for path in ("/check", "/checks/")] == [401, 401], "not signed"
    assert asyncio.run(posted("/other")) == 404


def test_consumer_applies_a_message_once() -> None:
    class Row:
        half_queue_id, half_queue_offset, born_timestamp = 0, 12, datetime.now(timezone.utc)

    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    MessageApply().create_table(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE credits (sum INTEGER)"))
        connection.execute(sa.text("INSERT INTO credits VALUES (0)"))
    names = {"engine": engine, "idempotent": idempotent, "text": sa.text, "rows": [Row, Row]}
    _run(_python("docs/producer.md", "The consumer"), names, **{"SET ...": "SET sum = sum + 42"})
    with engine.begin() as connection:
        assert connection.execute(sa.text("SELECT sum FROM credits")).scalar() == 42


def test_receiver_of_webhooks(tmp_path: Path) -> None:
    """The page's server verifies what a group posts; what it fails on comes again."""
    applied: dict[str, str] = {}
    failed: list[str] = []

    def apply(webhook_id: str, body: bytes) -> None:
        if body == b"body-1" and not failed:
            failed.append(webhook_id)
            raise ValueError
        applied[webhook_id] = body.decode()

    _credits(tmp_path)
    names = {"secret": SECRET, "apply": apply}
    made = _run(_python("docs/webhooks.md", "A receiver"), names, **{"server.serve_forever()": "", "8903": "0"})
    server = made["server"]
    made["Receiver"].log_message = lambda *_: None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    about = {"topic": "payments", "url": f"http://127.0.0.1:{server.server_port}/", "secret": SECRET, "orderly": True}
    group = PushedGroup("mail", Settings.model_validate({"storage": {"root": str(tmp_path)}, "push": {"mail": about}}))
    group.start()
    try:
        until(lambda: len(applied) == 3)
    finally:
        group.close()
        server.shutdown()
        server.server_close()
    assert list(applied.values()) == ["body-0", "body-1", "body-2"]
    assert failed == [list(applied)[1]], "the same webhook-id again"


def test_filter() -> None:
    names = _run(_python("docs/consumer.md", "Filters"), {})
    assert names["selector"].columns == ("properties",)


def _credits(root: Path) -> Published:
    """A topic, and a group with a dead letter of it."""
    lake = Published(Tables.of(Storage(root=str(root), sync=False)))
    lake.publish({"payments": [lake.messages(3)]})
    queues = {MessageQueue("payments", queue_id): QueueState(Position()) for queue_id in range(QUEUES)}
    GroupTable(lake.tables, "credits").update(lambda _: GroupState({}, queues))
    dead = {"consumer_group": "credits", "topic": "payments", "dead_at": time_of(START + 9_000)}
    lake.append("dead_letters", [message | dead for message in lake.messages(1)])
    return lake


def test_consumer_groups_in_a_notebook(tmp_path: Path) -> None:
    names = {"cb": Checkback(_credits(tmp_path).tables.root)}
    block = _python("docs/consumer.md", "group list, group describe")
    _run(block, names)
    found = eval(block.text.splitlines()[-1], names)  # noqa: S307 - the page's own line
    assert found.loc["credits", "payments"].lag_messages == 3


def test_metrics_of_a_consumer(tmp_path: Path) -> None:
    """The page's words, with a consumer that joins the group, on any free port."""
    root = _credits(tmp_path).tables.root
    consumer = PushConsumer("credits", root, lambda _: ConsumeResult.SUCCESS).subscribe("payments")
    made = _run(
        _python("docs/consumer.md", "Metrics"),
        {"consumer": consumer},
        **{'"data"': repr(root), "port=9109": "port=0", "...": "owned = consumer.queues()"},
    )
    assert len(made["owned"]) == QUEUES


def _replayed(root: Path) -> Settings:
    """Of tables with two transactions that were discarded before their COMMIT came."""
    write(root, LATE_TIMES, {(queue, 0): np.array(list(LATE), RECORDED) for queue in (0, 1)})
    return Settings.model_validate({"storage": {"root": str(root)}})


def test_what_if_in_a_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's words, on all there is."""
    block = _python("docs/inspect.md", "What-if in a notebook")
    found = _run(block, {"cb": Checkback(settings=_replayed(tmp_path))}, **{', since="6h ago"': ""})["found"]
    assert found.total.saved == 2
    assert capsys.readouterr().out == "2 0 4\n"


def test_every_python_block_is_run() -> None:
    """Here, with Spark (test_spark.py), or in other tests: a new one needs a test."""
    here = {
        ("README.md", "A producer"),
        ("README.md", "The demonstration"),
        ("docs/rocketmq.md", "Moving a producer"),
        ("docs/consumer.md", "Filters"),
        ("docs/webhooks.md", "A receiver"),
    }
    here |= {("docs/producer.md", heading) for heading in ("The check endpoint", "The consumer")}
    here |= {("docs/queries.md", heading) for heading in ("DuckDB, polars, pandas", "Other engines")}
    here.add(("docs/producer.md", "Several gateways"))
    here.add(("docs/producer.md", "Half messages and transaction ids"))
    here |= {("docs/inspect.md", heading) for heading in ("In Python", "The audit in Python", "What-if in a notebook")}
    here |= {("docs/consumer.md", heading) for heading in ("group list, group describe", "Metrics")}
    there = {("docs/producer.md", "A service in one page"), ("docs/protocol.md", "Messages without a transaction")}
    # tests/producer/test_docs.py, tests/consumer/test_docs.py, tests/gateway/rocketmq/test_python_client.py
    there |= {("docs/consumer.md", "Consuming a topic"), ("docs/consumer.md", "Exactly once")}
    there |= {
        ("docs/producer.md", "Several messages in one local transaction"),
        ("docs/rocketmq.md", "Moving a listener"),
        ("docs/rocketmq-clients.md", "Move a RocketMQ producer in five minutes"),
    }
    assert {(block.page, block.heading) for block in blocks("python") if not block.needs_spark} == here | there


def _id(call: Call) -> str:
    return " ".join([*call.environ, *call.arguments])[:60]


@pytest.mark.parametrize("call", _commands("config"), ids=_id)
def test_config(call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    for name, value in call.environ.items():
        monkeypatch.setenv(name, value)
    assert main(call.arguments) == 0
    assert "transaction.timeout" in capsys.readouterr().out


_ANSWERS = ("audit", "maintain", "outages", "status", "tx decisions", "tx describe", "tx list", "topic list")
_NO_CATALOG = [call for call in _commands(*_ANSWERS) if "catalog" not in str(call.arguments)]


@pytest.mark.parametrize("call", _NO_CATALOG, ids=_id)
def test_answers(call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On tables with the transaction or key that it names, which is pending. The day is nearly over."""
    lake = Lakehouse(tmp_path, datetime.now(timezone.utc))
    arguments = [f"{tmp_path}" if word == "data/bank/data" else word for word in call.arguments]
    about = [word for word in call.arguments[2:] if not word.startswith("-")]
    named = about[0] if about and call.arguments[1] == "describe" else "order-4711"
    lake.half(12, named, keys=named)
    evening = datetime.combine(datetime.now(timezone.utc), time.max, timezone.utc)
    with patch("checkback.query.versions.as_of._now", return_value=evening):
        assert main([*arguments, "--set", f"storage.root={tmp_path}"]) == 0
    assert capsys.readouterr().out or "json" in arguments


@pytest.mark.parametrize("call", _commands("tx resolve", "tx resume", "tx cancel"), ids=_id)
def test_operator(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a transaction that is as it must be: pending, discarded, or scheduled. With --yes it is done, else shown."""
    monkeypatch.setenv("USER", "alice")
    verb, transaction = call.arguments[1:3]
    lake = Lakehouse(tmp_path, datetime.now(timezone.utc))
    place = lake.half(12, transaction)
    if verb == "resume":
        lake.decide(place, "DISCARD", "checkback")
    if verb == "cancel":
        lake.decide(place, "COMMIT", "producer", datetime.now(timezone.utc) + timedelta(hours=1))
    assert main([*call.arguments, "--set", f"storage.root={tmp_path}"]) == 0
    assert ("Resumed 1 message" if transaction == "--all" else transaction) in capsys.readouterr().out
    assert len(lake.rows("operations")) == call.arguments.count("--yes")


@pytest.mark.parametrize("call", _commands("what-if"), ids=_id)
def test_what_if(call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _replayed(tmp_path)
    assert main([*call.arguments, "--set", f"storage.root={tmp_path}"]) == 0
    assert "batches from 1970-01-01" in capsys.readouterr().out


@pytest.mark.parametrize("call", _commands("topic consume", "group"), ids=_id)
def test_consumer_commands(call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a topic and a group as they must be. --follow would not end; --yes does it, else it is shown."""
    names = {"TOPIC": "payments", "refunds": "payments", "GROUP": "credits"}
    arguments = [names.get(word, word) for word in call.arguments]
    lake = _credits(tmp_path)
    if "--sql" in arguments:
        pytest.importorskip("lark", reason="SQL92 needs lark")
    run = [word for word in arguments if word != "--follow"]
    assert main([*run, "--set", f"storage.root={tmp_path}"]) == 0
    assert capsys.readouterr().out or "json" in run
    retries = [each.retries for each in read_group(lake.tables, "credits").state.queues.values() if each.retries]
    assert len(retries) == call.arguments.count("--yes")


@pytest.mark.processes
@pytest.mark.spark
def test_first_command_of_cluster_mode_runs_the_python_that_it_names(tmp_path: Path) -> None:
    """Another one, without the packages, is the first on PATH. What it fetches tests/cluster has."""
    package()
    path, nothing = tmp_path / "bin", tmp_path / "nothing.conf"
    path.mkdir()
    nothing.touch()
    for name in ("python", "python3"):
        (path / name).write_text("#!/bin/sh\nexit 9\n")
        (path / name).chmod(0o755)
    [call, _] = [call for block, call in _calls("spark-submit", "docs/deploy.md") if block.heading == "Cluster mode"]
    here = {
        "/opt/checkback/.venv/bin/python": str(python_without_checkback(tmp_path / "python")),
        "/opt/checkback/conf/spark-s3.conf": str(nothing),
        "/opt/checkback/ivy": str(tmp_path / "ivy"),
        "/opt/checkback": str(ROOT),
    }
    words = "\0".join(call.arguments)
    for printed, instead in here.items():
        words = words.replace(printed, instead)
    with Submitted(tmp_path / "log", words.split("\0"), {"PATH": f"{path}:{os.environ['PATH']}"}) as submitted:
        submitted.until(lambda: "Usage: " in submitted.said())
        assert submitted.process.wait(PATIENCE_S) == 0
