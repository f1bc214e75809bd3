"""What a producer does with Apache's Python client: ROOT [tls://][KEY:SECRET@]ENDPOINT SCENARIO...

Each scenario says a line of JSON: its name, and what the client was told. They run side by side, each with a topic of
its own name. ``ROOT``: of the tables, for those that go on once something is decided.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from rocketmq import ClientConfiguration, Credentials, Message, Producer, TransactionChecker, TransactionResolution
from rocketmq.grpc_protocol import TransactionSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMMIT, ROLLBACK = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK
UNKNOWN = TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
_PATIENCE_S = 500
_SIDE_BY_SIDE = 16
_THREADS, _EACH = 8, 125
#: the client writes its Settings at the start, a second later, and then every five minutes
_SETTINGS_WRITTEN_S = 2
#: the gateway hears of a decision within a second or so
_FOLLOWED_S = 5
#: how long until the delayed message is due
_DELAY_S = 4
MIB4 = 4 << 20


class Answers(TransactionChecker):  # type: ignore[misc]  # it has no types
    """A checker that gives these answers, the last one again and again; an exception is raised."""

    def __init__(self, *answers: Any, acts: Callable[[], Any] = lambda: None) -> None:
        """``acts``: what it does before it answers."""
        self._answers, self._acts = answers, acts
        self.asked: list[Any] = []
        self._changed = threading.Condition()

    def check(self, message: Any) -> Any:
        self._acts()
        with self._changed:
            self.asked.append(message)
            self._changed.notify_all()
        answer = self._answers[min(len(self.asked), len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait(self, count: int) -> None:
        """Until it has been asked so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, _PATIENCE_S), len(self.asked)


@contextmanager
def producer(topic: str | None = None, checker: Any = None, namespace: str = "") -> Iterator[Any]:
    account, _, endpoint = sys.argv[2].removeprefix("tls://").rpartition("@")
    key, _, secret = account.partition(":")
    configuration = ClientConfiguration(endpoint, Credentials(key, secret), namespace)
    tls = sys.argv[2].startswith("tls://")
    started = Producer(configuration, None if topic is None else [topic], checker, tls)
    started.startup()
    try:
        yield started
    finally:
        started.shutdown()


def message(topic: str, body: bytes | str = "x", **fields: Any) -> Any:
    """``fields``: those of the client's message; ``keys`` and ``properties`` are several."""
    made = Message()
    made.topic, made.body = topic, body.encode() if isinstance(body, str) else body
    for key in fields.pop("keys", ()):
        made.keys = key
    for name, value in fields.pop("properties", {}).items():
        made.add_property(name, value)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def half(sender: Any, topic: str, body: str = "half", **fields: Any) -> Any:
    """The transaction, once its half message is sent."""
    transaction = sender.begin_transaction()
    sender.send(message(topic, body, **fields), transaction)
    return transaction


def said(call: Callable[[], Any]) -> Any:
    """The status of an end, "OK" for anything else that worked; else the error's class, and the code in it."""
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - whatever the client raises
        code = getattr(error, "code", None)
        return type(error).__name__ if code is None else f"{type(error).__name__} {code}"
    return result.status.code if hasattr(result, "status") else "OK"


def decided(topic: str, count: int = 1) -> None:
    """Return once so many transactions of the topic are."""
    end, pause, place = time.monotonic() + _PATIENCE_S, threading.Event(), f"{sys.argv[1]}/decisions"
    while True:
        if DeltaTable.is_deltatable(place):
            topics = DeltaTable(place).to_pyarrow_table(columns=["real_topic"])["real_topic"].to_pylist()
            if topics.count(topic) >= count:
                return
        assert time.monotonic() < end, f"{topic} is not decided"
        pause.wait(0.3)


def tx_commit(topic: str) -> dict[str, Any]:
    """Not visible before, and with all that it says afterwards."""
    with producer(topic, Answers(UNKNOWN)) as sender:
        transaction = sender.begin_transaction()
        about = {"tag": "tagA", "keys": ["k1", "k2"], "properties": {"a": "b"}}
        receipt = sender.send(message(topic, "hello", **about), transaction)
        half(sender, f"{topic}_later").commit()
        decided(f"{topic}_later")
        before = DeltaTable.is_deltatable(f"{sys.argv[1]}/topics/{topic}")
        told = said(transaction.commit)
    same = receipt.transaction_id == receipt.message_id
    return {"visible before": before, "commit": told, "transaction id is the message id": same}


def tx_rollback(topic: str) -> dict[str, Any]:
    checker = Answers(COMMIT)
    with producer(topic, checker) as sender:
        told = said(half(sender, topic).rollback)
        decided(topic)
    return {"rollback": told, "checks": len(checker.asked)}


def _checked(*answers: Any) -> Callable[[str], dict[str, Any]]:
    def scenario(topic: str) -> dict[str, Any]:
        checker = Answers(*answers)
        with producer(topic, checker) as sender:
            transaction = half(sender, topic, keys=["k1", "k2"], tag="tagA", properties={"order": "7"})
            decided(topic)
        first = checker.asked[0]
        about = [first.body.decode(), first.tag, sorted(first.keys), first.properties["order"], first.corrupted]
        same = {asked.message_id for asked in checker.asked} == {transaction.message_id}
        return {"checks": len(checker.asked), "asked about": about, "same message id": same}

    return scenario


def tx_kill9(topic: str) -> dict[str, Any]:
    """The process that sent the half message is killed; another one starts."""
    died = subprocess.run([sys.executable, *sys.argv[:3], "die"], check=False)
    checker = Answers(COMMIT)
    with producer(topic, checker):
        decided(topic)
    return {"died": died.returncode, "checks": len(checker.asked)}


def die(_: str) -> dict[str, Any]:
    with producer("tx_kill9", Answers(UNKNOWN)) as sender:
        half(sender, "tx_kill9", "from the killed one")
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


def tx_two_producers(topic: str) -> dict[str, Any]:
    mine, others = Answers(COMMIT), Answers(COMMIT)
    with producer(topic, mine) as sender, producer(topic, others):
        for number in range(10):
            half(sender, topic, f"m{number}")
        decided(topic, 10)
    return {"checks of the sender": len(mine.asked), "of the other one": len(others.asked)}


def tx_topic_not_declared(topic: str) -> dict[str, Any]:
    checker = Answers(COMMIT)
    with producer(None, checker) as sender:
        half(sender, topic)
        decided(topic)
    return {"checks": len(checker.asked)}


def tx_undeclared_after_start(topic: str) -> dict[str, Any]:
    """Its Settings, written before, never name the topic."""
    checker = Answers(COMMIT)
    with producer("another", checker) as sender:
        threading.Event().wait(_SETTINGS_WRITTEN_S)
        half(sender, topic)
        decided(topic)
    return {"checks": len(checker.asked)}


def tx_no_checker(topic: str) -> dict[str, Any]:
    with producer(topic) as sender:
        return {"begin": said(sender.begin_transaction)}


def tx_second_end(topic: str) -> dict[str, Any]:
    told = {}
    with producer(topic, Answers(UNKNOWN)) as sender:
        for ends in ("commit commit", "rollback commit", "commit rollback", "rollback rollback"):
            transaction = half(sender, topic, ends)
            told[ends] = [said(getattr(transaction, end)) for end in ends.split()]
    return told


def tx_wrong_ids(topic: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    with producer(topic, Answers(UNKNOWN)) as sender:

        def sent(body: str) -> tuple[Any, Any, Any]:
            transaction, each = sender.begin_transaction(), message(topic, body)
            return transaction, each, sender.send(each, transaction)

        def end(of: Any, receipt: Any, transaction_id: str, resolution: Any = COMMIT) -> Any:
            where = receipt.message_queue.endpoints
            return said(
                lambda: sender.end_transaction(where, of, transaction_id, resolution, TransactionSource.SOURCE_CLIENT)
            )

        _, first, receipt = sent("w1")
        told["unknown transaction id"] = end(first, receipt, "NOSUCH")
        told["empty transaction id"] = end(first, receipt, "")
        other = message(topic)
        other.message_id = "01" + "A" * 32
        told["wrong message id"] = end(other, receipt, receipt.transaction_id)
        transaction, _, receipt = sent("w2")
        elsewhere = message("another")
        elsewhere.message_id = receipt.message_id
        told["wrong topic"] = end(elsewhere, receipt, receipt.transaction_id)
        told["right one after it"] = said(transaction.commit)
        transaction, third, receipt = sent("w3")
        told["unspecified"] = end(third, receipt, receipt.transaction_id, UNKNOWN)
        told["commit after it"] = said(transaction.commit)
    return told


def tx_late_commit(topic: str) -> dict[str, Any]:
    """After two checks."""
    checker = Answers(UNKNOWN)
    with producer(topic, checker) as sender:
        transaction = half(sender, topic)
        checker.wait(2)
        return {"commit": said(transaction.commit)}


def tx_very_late_commit(topic: str) -> dict[str, Any]:
    """After the last check, once the message is dropped."""
    checker = Answers(UNKNOWN)
    with producer(topic, checker) as sender:
        transaction = half(sender, topic)
        decided(topic)
        threading.Event().wait(_FOLLOWED_S)
        return {"commit": said(transaction.commit), "checks": len(checker.asked)}


def tx_commit_and_check(topic: str) -> dict[str, Any]:
    """Twelve, each committed by its process while a check of it is being answered COMMIT."""
    halves: list[Any] = []
    told: list[int] = []
    checker = Answers(COMMIT, acts=lambda: told.extend(said(each.commit) for each in halves))
    with producer(topic, checker) as sender:
        halves += [half(sender, topic, f"m{number}") for number in range(12)]
        decided(topic, 12)
    return {"told": sorted(set(told))}


def tx_misuse(topic: str) -> dict[str, Any]:
    with producer(topic, Answers(UNKNOWN)) as sender:
        told = {"commit without a message": said(sender.begin_transaction().commit)}
        transaction = half(sender, topic)
        told["second message"] = said(lambda: sender.send(message(topic), transaction))
        transaction.commit()
        for name, fields in {"with a delay": {"delivery_timestamp": 9}, "with a group": {"message_group": "g"}}.items():
            told[name] = said(lambda fields=fields: half(sender, topic, **fields))  # type: ignore[misc]
    return told


def fields(topic: str) -> dict[str, Any]:
    names = {
        "a": "b",
        "unicode": "grüße 你好 🙂",
        "spaces": " x ",
        "quote": "\"'\\",
        "sep": "a|b;c=d,e",
        "Key.With-odd_chars": "1",
    }
    about = {"tag": "tag-ü", "keys": ["k1", "k 2", "ключ"], "properties": names | {"ключ": "значение"}}
    with producer(topic) as sender:
        return {"send": said(lambda: sender.send(message(topic, "grüße 你好", **about)))}


def odd_properties(topic: str) -> dict[str, Any]:
    odd: dict[str, dict[str, Any]] = {
        "newline in a value": {"properties": {"k": "a\nb"}},
        "tab": {"properties": {"k": "a\tb"}},
        "newline in a name": {"properties": {"k\nx": "v"}},
        "empty value": {"properties": {"k": ""}},
        "blank value": {"properties": {"k": "  "}},
        "empty name": {"properties": {"": "v"}},
        "TAGS": {"properties": {"TAGS": "v"}},
        "KEYS": {"properties": {"KEYS": "v"}},
        "UNIQ_KEY": {"properties": {"UNIQ_KEY": "v"}},
        "15 kB": {"properties": {"k": "v" * 15_000}},
        "17 kB": {"properties": {"k": "v" * 17_000}},
        "128": {"properties": {f"k{number}": "v" for number in range(128)}},
        "129": {"properties": {f"k{number}": "v" for number in range(129)}},
        "| in the tag": {"tag": "a|b"},
        "newline in the tag": {"tag": "a\nb"},
        "newline in a key": {"keys": ["a\nb"]},
        "blank tag": {"tag": " "},
    }
    with producer(topic) as sender:
        return {
            name: said(lambda name=name, given=given: sender.send(message(topic, name, **given)))  # type: ignore[misc]
            for name, given in odd.items()
        }


def bodies(topic: str) -> dict[str, Any]:
    with producer(topic) as sender:
        sizes = (0, 1, 1024, MIB4 - 1, MIB4, MIB4 + 1)
        return {str(size): said(lambda size=size: sender.send(message(topic, b"z" * size))) for size in sizes}  # type: ignore[misc]


def topics(topic: str) -> dict[str, Any]:
    named = {name: name for name in (topic, "a b", "a/b", "tö", "", "%odd%", "TBW102", "%RETRY%g", "p.dot")}
    named |= {"system": "RMQ_SYS_TRANS_HALF_TOPIC", "127": "x" * 127, "128": "x" * 128}
    with producer() as sender:
        return {name: said(lambda at=at: sender.send(message(at))) for name, at in named.items()}  # type: ignore[misc]


def types(topic: str) -> dict[str, Any]:
    """Messages of each kind to one topic."""
    with producer(topic, Answers(UNKNOWN)) as sender:
        kinds: dict[str, dict[str, Any]] = {
            "FIFO": {"message_group": "g"},
            "DELAY": {"delivery_timestamp": int(time.time()) + 1},
            "NORMAL": {},
        }
        told = {
            kind: said(lambda kind=kind, given=given: sender.send(message(topic, kind, **given)))  # type: ignore[misc]
            for kind, given in kinds.items()
        }
        return told | {"TRANSACTION": said(lambda: half(sender, topic, "TRANSACTION").commit())}


def delay(topic: str) -> dict[str, Any]:
    now = int(time.time())
    due = {"due": now + _DELAY_S, "past": now - 100, "now": now, "23 h": now + 82_800, "25 h": now + 90_000}
    with producer(topic) as sender:
        return {
            body: said(lambda body=body, at=at: sender.send(message(topic, body, delivery_timestamp=at)))  # type: ignore[misc]
            for body, at in {**due, "in milliseconds": now * 1000}.items()
        }


def fifo(topic: str) -> dict[str, Any]:
    with producer(topic) as sender:
        for number in range(10):
            for group in ("g1", "g2", "g3"):
                sender.send(message(topic, f"{group}-{number}", message_group=group))
    return {}


def _from_threads(act: Callable[[int], Any]) -> dict[str, Any]:
    with ThreadPoolExecutor(_THREADS) as pool:
        told = list(pool.map(lambda number: said(lambda: act(number)), range(_THREADS * _EACH)))
    return {str(each): told.count(each) for each in set(told)}


def threads(topic: str) -> dict[str, Any]:
    with producer(topic) as sender:
        return _from_threads(lambda number: sender.send(message(topic, str(number))))


def tx_threads(topic: str) -> dict[str, Any]:
    """Every fifth is rolled back."""
    with producer(topic, Answers(UNKNOWN)) as sender:

        def act(number: int) -> Any:
            transaction = half(sender, topic, str(number))
            return transaction.commit() if number % 5 else transaction.rollback()

        return _from_threads(act)


def namespace(topic: str) -> dict[str, Any]:
    with producer(topic, namespace="ns1") as sender:
        return {"send": said(lambda: sender.send(message(topic, "ns")))}


def _lost_answer(act: Callable[[Any, str], Any]) -> Callable[[str], dict[str, Any]]:
    """The client sends again, with the same message id, because the first answer does not come."""

    def scenario(topic: str) -> dict[str, Any]:
        with producer(topic, Answers(UNKNOWN)) as sender:
            send, ids = sender.rpc_client.send_message_async, []

            def lose_first(endpoints: Any, request: Any, *rest: Any, **more: Any) -> Any:
                ids.append(request.messages[0].system_properties.message_id)
                answer = send(endpoints, request, *rest, **more)
                if len(ids) > 1:
                    return answer
                answer.result()
                lost: Future[Any] = Future()
                lost.set_exception(TimeoutError())
                return lost

            sender.rpc_client.send_message_async = lose_first
            told = said(lambda: act(sender, topic))
        return {"told": told, "sent": len(ids), "ids": len(set(ids))}

    return scenario


lost_answer = _lost_answer(lambda sender, topic: sender.send(message(topic)))
lost_answer_to_half = _lost_answer(lambda sender, topic: half(sender, topic).commit())
tx_check_commit, tx_check_rollback, tx_check_unknown = _checked(COMMIT), _checked(ROLLBACK), _checked(UNKNOWN)
tx_unknown_then_commit, tx_checker_returns_none = _checked(UNKNOWN, UNKNOWN, COMMIT), _checked(None)
tx_checker_raises, tx_raises_then_commit = _checked(ValueError()), _checked(ValueError(), COMMIT)


def run(name: str) -> dict[str, Any]:
    """What a scenario says."""
    try:
        told = globals()[name](name)
    except Exception as error:  # noqa: BLE001 - the test shows it
        told = {"failed": repr(error)}
    return {"scenario": name, **told}


def main() -> None:
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        for told in pool.map(run, sys.argv[3:]):
            print(json.dumps(told), flush=True)
    os._exit(0)  # the client's threads do not end


if __name__ == "__main__":
    main()
