"""The gateway as a process: it stops, is killed, starts again, is taken over; what it acknowledged stands."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import requests

from checkback.gateway.appender import Appender, claim
from checkback.storage.log.delta_log import DeltaLog
from gateway.process import PATIENCE_S, TO_TABLE, Gateway, half, op, rows

pytestmark = pytest.mark.processes

#: kill -9 so often
KILLS = int(os.environ.get("CHECKBACK_KILLS", "3"))


def landed(root: Path, name: str) -> list[str]:
    return [row["transaction_id"] for row in rows(root, name)]


def test_json_is_all_that_it_says(tmp_path: Path) -> None:
    """Also where it listens, and a request that is not HTTP."""
    command = [sys.executable, "-m", "checkback", "gateway", "--port", "0", "--set", f"storage.root={tmp_path}"]
    command += ["--set", "log.format=json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        begun = json.loads(process.stderr.readline())
        assert (begun["event"], begun["queues"]) == ("gateway_started", [0])
        host, _, port = begun["url"].removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
            client.sendall(b"\0\r\n\r\n")
            client.recv(1)
        process.terminate()
        said, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (0, "")
    assert all(json.loads(line) for line in errors.splitlines())


def test_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Offsets, retries, ops and contradictions as if it had never stopped; SIGTERM is exit 0."""
    with Gateway(tmp_path) as gateway:
        gateway.post("/v1/halves", {"messages": [half(f"t-{n}") for n in range(5)]})
        gateway.post("/v1/op", op(1, "t-1"))
        assert gateway.stop() == (0, "")
    with Gateway(tmp_path) as gateway:
        assert gateway.post("/v1/half", half("t-3")).json()["queue_offset"] == 3
        assert gateway.post("/v1/half", half("t-3", tags="x")).status_code == 409
        assert gateway.post("/v1/half", half("t-5")).json()["queue_offset"] == 5
        assert gateway.post("/v1/op", op(1, "t-1")).json()["repeated"] is True
        assert gateway.post("/v1/op", op(1, "t-1", "ROLLBACK")).json()["first_state"] == "COMMIT"
        assert gateway.post("/v1/op", op(2, "t-2", "ROLLBACK")).json()["repeated"] is False
    assert landed(tmp_path, "half") == [f"t-{n}" for n in range(6)]
    assert landed(tmp_path, "op") == ["t-1", "t-2"]


def test_signal_during_the_start_ends_it(tmp_path: Path) -> None:
    """Exit code 0, as later; in front of an object store a start takes seconds."""
    command = [sys.executable, "-m", "checkback", "gateway", "--port", "0", "--set", f"storage.root={tmp_path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            while not _catches(process.pid, signal.SIGTERM):
                assert process.poll() is None
            process.terminate()
            _, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, b"")


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal (proc(5), /proc/PID/status)."""
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", Path("/proc", str(pid), "status").read_text())
    return caught is not None and bool(int(caught.group(1), 16) >> (number - 1) & 1)


def test_what_is_forgotten_is_found_in_the_tables(tmp_path: Path) -> None:
    """Memory holds two half messages; ops for older ones are judged all the same."""
    with Gateway(tmp_path, TO_TABLE, "gateway.dedup_max=2", "gateway.linger=0s") as gateway:
        for n in range(6):
            gateway.post("/v1/half", half(f"t-{n}"))
    with Gateway(tmp_path, "gateway.dedup_max=2") as gateway:
        assert "checkback_gateway_remembered 2.0" in gateway.get("/metrics").text
        assert gateway.post("/v1/op", op(0, "t-1")).json()["code"] == "wrong_transaction_id"
        assert gateway.post("/v1/op", op(0, "t-0")).json()["repeated"] is False
        results = gateway.post("/v1/ops", {"ops": [op(n, f"t-{n}", "ROLLBACK") for n in range(7)]}).json()["results"]
        assert [result["status"] for result in results] == [409, 200, 200, 200, 200, 200, 404]
    with Gateway(tmp_path, "gateway.dedup_window=1ms") as gateway:
        # At most the last one: from it a start counts back.
        assert re.search(r"^checkback_gateway_remembered [01]\.0$", gateway.get("/metrics").text, re.MULTILINE)
        assert gateway.post("/v1/op", op(3, "t-3", "ROLLBACK")).json()["repeated"] is True
        assert gateway.post("/v1/op", op(3, "t-3")).json()["first_state"] == "ROLLBACK"
        assert gateway.get("/v1/transactions/t-0", producer_group="orders").json()["state"] == "COMMIT"
        assert gateway.get("/v1/transactions/t-9", producer_group="orders").status_code == 404
    assert landed(tmp_path, "op") == [f"t-{n}" for n in range(6)]


@pytest.mark.parametrize("acknowledge", ["table", "journal"])
def test_messages_of_a_key_or_queue_keep_their_order_in_one_half_queue(tmp_path: Path, acknowledge: str) -> None:
    """Alone and in a request of several, whose answers are in its order; offsets of each queue are without a gap."""
    sent = [half(f"a-{n}", ordering_key="account-7") for n in range(8)]  # queue 5 of its topic
    sent += [half(f"b-{n}", ordering_key="account-6") for n in range(8)]  # queue 19
    sent += [half(f"c-{n}", properties={"__SHARDINGKEY": "account-0"}) for n in range(8)]  # queue 38
    sent += [half(f"d-{n}", real_queue_id=38) for n in range(8)]
    sent += [half(f"e-{n}") for n in range(8)]
    sent = [sent[kind * 8 + n] for n in range(8) for kind in range(5)]
    refused, repeated = half("f", tags=7), half("a-0", ordering_key="account-7")
    with Gateway(tmp_path, "gateway.queues=[7,2,9]", f"gateway.acknowledge={acknowledge}") as gateway:
        told = [gateway.post("/v1/half", one).json() for one in sent[:20]]
        batch = gateway.post("/v1/halves", {"messages": [refused, *sent[20:], repeated]}).json()["results"]
        assert batch.pop(0)["code"] == "unfit"
        assert {"status": 200, **told[0]} == batch.pop()
        told += batch
        assert [one["transaction_id"] for one in told] == [one["transaction_id"] for one in sent]
        places = [(one["queue_id"], one["queue_offset"]) for one in told]
        assert gateway.post("/v1/op", op(places[5][1], "a-1", queue_id=places[5][0])).status_code == 200
    for kind, queue_id in enumerate((9, 2, 9, 9)):  # 5, 19, 38 and 38 modulo 3
        mine = places[kind::5]
        assert {queue for queue, _ in mine} == {queue_id}
        assert mine == sorted(mine)
    found = {(row["queue_id"], row["queue_offset"]): row["transaction_id"] for row in rows(tmp_path, "half")}
    assert found == {place: one["transaction_id"] for place, one in zip(places, sent, strict=True)}
    for queue_id in (2, 7, 9):
        offsets = [offset for queue, offset in found if queue == queue_id]
        assert offsets == list(range(len(offsets)))
        assert offsets


def test_queue_that_is_given_up_is_known_all_the_same(tmp_path: Path) -> None:
    """What landed there keeps its place when it is sent again, and takes its op, once; new ones land in the others."""
    with Gateway(tmp_path, "gateway.queues=[0,1,5000]", "gateway.linger=0s") as gateway:
        places = {n: gateway.post("/v1/half", half(f"t-{n}")).json() for n in range(6)}
    given_up = [n for n, place in places.items() if place["queue_id"] != 0]
    assert len(given_up) == 4
    with Gateway(tmp_path, "gateway.queues=[0]") as gateway:
        for n, place in places.items():
            assert gateway.post("/v1/half", half(f"t-{n}")).json() == place
            ended = op(place["queue_offset"], f"t-{n}", queue_id=place["queue_id"])
            for repeated in (False, True):
                assert gateway.post("/v1/op", ended).json()["repeated"] is repeated
            assert gateway.post("/v1/op", ended | {"state": "ROLLBACK"}).json()["first_state"] == "COMMIT"
        assert gateway.post("/v1/op", op(2, "t", queue_id=9)).json()["code"] == "unknown_offset"
        assert gateway.post("/v1/half", half("u")).json() == {"transaction_id": "u", "queue_id": 0, "queue_offset": 2}
    assert sorted(landed(tmp_path, "op")) == [f"t-{n}" for n in range(6)]


def test_second_gateway_takes_the_queue_over(tmp_path: Path) -> None:
    """The first one's next commit fails: 503, one line, exit 1; and no offset is given twice."""
    with Gateway(tmp_path, TO_TABLE) as first:
        assert first.post("/v1/half", half("t-0")).json()["queue_offset"] == 0
        with Gateway(tmp_path, TO_TABLE) as second:
            assert second.post("/v1/half", half("t-1")).json()["queue_offset"] == 1
            lost = first.post("/v1/half", half("t-2"))
            assert (lost.status_code, lost.json()["code"]) == (503, "stopping")
            code, said = first.wait()
            assert code == 1
            assert said.count("\n") == 1
            assert "another gateway has taken over a queue" in said
            assert second.post("/v1/half", half("t-2")).json()["queue_offset"] == 2
    assert landed(tmp_path, "half") == ["t-0", "t-1", "t-2"]


def test_an_op_is_fenced_too(tmp_path: Path) -> None:
    """A gateway that has lost its queue cannot end a transaction by what it remembers."""
    with Gateway(tmp_path, TO_TABLE) as first:
        first.post("/v1/half", half("t-0"))
        with Gateway(tmp_path, TO_TABLE) as second:
            assert second.post("/v1/op", op(0, "t-0", "ROLLBACK")).status_code == 200
            assert first.post("/v1/op", op(0, "t-0")).json()["code"] == "stopping"
            assert first.wait()[0] == 1
    assert [row["state"] for row in rows(tmp_path, "op")] == ["ROLLBACK"]


def test_of_two_that_start_the_last_has_both_tables(tmp_path: Path) -> None:
    """However their steps mix: whoever claims `half` last is the one who can claim `op`."""
    root = str(tmp_path)
    (half_a, op_a), (half_b, op_b) = [[Appender(root, name, [0]) for name in ("half", "op")] for _ in range(2)]
    half_a.claim(1)
    half_b.claim(2)
    op_b.claim(2)
    with pytest.raises(Exception, match="another gateway"):
        op_a.claim(1)
    claim(half_a, op_a)
    assert DeltaLog("op", f"{root}/op").versions(["gateway/0"]) == {"gateway/0": 3 << 32}


class Producers:
    """Threads that send half messages and ops without end, sending again what was not answered."""

    def __init__(self, count: int) -> None:
        self.url = ""
        self.halves: dict[str, tuple[int, int]] = {}
        self.ops: dict[str, str] = {}
        self.wrong: list[str] = []
        self.stopped = threading.Event()
        self.progress = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._produce, args=(number,)) for number in range(count)]

    def start(self, url: str) -> None:
        self.url = url
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def await_acknowledged(self, count: int) -> None:
        for _ in range(count):
            assert self.progress.acquire(timeout=PATIENCE_S)

    def _produce(self, number: int) -> None:
        session = requests.Session()
        session.trust_env = False
        sent = 0
        while not self.stopped.is_set():
            sent += 1
            names = [f"p{number}-{sent}-{part}" for part in range(4)]
            # Those of some are large enough for the journal's files.
            more = {"keys": "k" * 4_000, "body": "QUJD" * 6_000} if number % 2 else {}
            results = self._post(session, "/v1/halves", {"messages": [half(name, **more) for name in names]})
            for name, result in zip(names, results, strict=False):
                self.halves[name] = (result["queue_id"], result["queue_offset"])
            if len(results) < len(names):
                continue
            state = ("COMMIT", "ROLLBACK")[sent % 2]
            ops = [op(self.halves[name][1], name, state) for name in names]
            for name, _ in zip(names, self._post(session, "/v1/ops", {"ops": ops}), strict=False):
                self.ops[name] = state
            self.progress.release()

    def _post(self, session: requests.Session, path: str, content: Any) -> list[dict[str, Any]]:
        """The results, all of them 200; nothing when stopped before. An unanswered request is sent again."""
        while not self.stopped.is_set():
            try:
                answer = session.post(f"{self.url}{path}", json=content, timeout=PATIENCE_S)
            except requests.RequestException:
                self.stopped.wait(0.01)
                continue
            results: list[dict[str, Any]] = answer.json().get("results", [])
            if any(result["status"] not in (200, 503) for result in results) or answer.status_code not in (200, 503):
                self.wrong.append(answer.text[:300])
                return []
            if results and all(result["status"] == 200 for result in results):
                return results
        return []


def test_kill_9_under_load_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Every acknowledged half message and op is in the tables exactly once, and no offset was given twice."""
    producers = Producers(6)
    for kill in range(KILLS + 1):
        with Gateway(tmp_path, "gateway.linger=10ms") as gateway:
            if kill:
                producers.url = gateway.url
            else:
                producers.start(gateway.url)
            producers.await_acknowledged(20)
            if kill < KILLS:
                gateway.kill()
            else:
                producers.stop()
    assert producers.wrong == []
    halves, ops = rows(tmp_path, "half"), rows(tmp_path, "op")
    assert [row["queue_offset"] for row in halves] == list(range(len(halves)))
    names = Counter(row["transaction_id"] for row in halves)
    assert set(names.values()) == {1}
    places = {row["transaction_id"]: (row["queue_id"], row["queue_offset"]) for row in halves}
    assert {name: places[name] for name in producers.halves} == producers.halves
    assert set(Counter(row["queue_offset"] for row in ops).values()) == {1}
    states = {row["transaction_id"]: row["state"] for row in ops}
    assert {name: states[name] for name in producers.ops} == producers.ops
    assert len(producers.ops) >= 4 * 20 * KILLS


def test_what_was_accepted_is_finished(tmp_path: Path) -> None:
    """SIGTERM while requests wait to be committed: each is answered 200, and is in the table."""
    with Gateway(tmp_path, TO_TABLE, "gateway.linger=1h") as gateway:
        answers: list[requests.Response] = []

        def send(number: int) -> None:
            url = f"{gateway.url}/v1/half"
            answers.append(requests.post(url, json=half(f"t-{number}"), timeout=PATIENCE_S))

        threads = [threading.Thread(target=send, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        waiting = ""
        while 'checkback_gateway_waiting{table="half"} 5.0' not in waiting:
            waiting = gateway.get("/metrics").text
        assert gateway.stop() == (0, "")
        for thread in threads:
            thread.join()
    assert [answer.status_code for answer in answers] == [200] * 5
    assert len(rows(tmp_path, "half")) == 5
