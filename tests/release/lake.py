"""A lake in the middle of its work, as a release leaves it. `python -m release.lake` makes the one in tests/data.

Every checkpoint has begun and nothing is finished: transactions are pending, scheduled and being checked, a consumer
group has read half of a topic, and a gateway was killed with messages in its journal only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checkback import __version__
from checkback.consumer import PushConsumer
from checkback.producer import (
    CheckRequest,
    CheckServer,
    LocalTransactionState,
    Message,
    TransactionListener,
    check_app,
)
from consumer.heard import Heard
from gateway.process import Gateway, half, op
from support.copied_lakes import settle
from support.jvm import ENVIRON

ARCHIVES = Path(__file__).parents[1] / "data"
TOPIC, CONSUMERS = "payments", "billing"
#: transactions of the lake, by what has become of them
COMMITTED = [f"committed-{number}" for number in range(4)]
LANDED = ["landed-committed-0", "landed-committed-1"]
CHECKED = ["checked-0", "checked-1"]
SCHEDULED, IN_JOURNAL = "scheduled", "in-journal"
#: no check but to those that state an immunity; no time is too long ago
_SETTINGS = [
    "transaction.timeout=30000d",
    "transaction.max_age=36500d",
    "transaction.check_interval=1s",
    "reconcile.partitions=2",
    "reconcile.segment_size=64",
    "spark.master=local[2]",
]
#: the folder in which the archive was written: its checkpoints name it
_WRITTEN = Path("/tmp/checkback-release")  # noqa: S108 - it is the same wherever the archive is made


class Producer(TransactionListener):
    """Answers checks: of these transactions COMMIT, of the others UNKNOWN."""

    def __init__(self, committed: Sequence[str]) -> None:
        self._committed = committed

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        raise NotImplementedError("it answers checks only")

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        return LocalTransactionState.COMMIT if check.transaction_id in self._committed else None


class Lake:
    """The lake in a folder, used as from a shell."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: settings of commands, besides those that the lake was made with
        self.settings: list[str] = []

    def run(self, *arguments: str, endpoint: str | None = None) -> str:
        """What a command prints, which must succeed."""
        settings = [f"storage.root={self.root}", *_SETTINGS, *self.settings]
        if endpoint is not None:
            settings.append(f'producers.checked.endpoints=["{endpoint}"]')
        command = [sys.executable, "-m", "checkback", *arguments]
        command += [word for setting in settings for word in ("--set", setting)]
        environ = {**os.environ, **ENVIRON}
        done = subprocess.run(command, env=environ, cwd=self.root.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def gateway(self, *settings: str) -> Gateway:
        """A gateway, which is to be closed."""
        return Gateway(self.root, *_SETTINGS, *settings)

    def land(self, name: str, halves: Sequence[dict[str, Any]], ops: Sequence[dict[str, Any]]) -> None:
        """Land these lines from a folder of their own."""
        for kind, lines in (("half", halves), ("op", ops)):
            folder = self.root.parent / name / kind
            folder.mkdir(parents=True)
            (folder / "0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        place = self.root.parent / name
        self.run("land", "--half", f"{place}/half", "--op", f"{place}/op", "--available-now")

    def consume(self, count: int) -> list[str]:
        """The transactions of the next messages that the group gets, once it has had so many; sorted."""
        heard = Heard()
        consumer = PushConsumer(CONSUMERS, str(self.root), heard)
        consumer.subscribe(TOPIC)
        with consumer:
            heard.wait_for_count(count)
        return sorted(str(message.transaction_id) for message in heard.messages)


@contextmanager
def answering(committed: Sequence[str]) -> Iterator[str]:
    """The URL of a producer of the group checked, while it answers."""
    with CheckServer(check_app({"checked": Producer(committed)}, secret=None)) as server:
        yield server.url


def landed(number: int, transaction_id: str, state: str | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines of files: a half message of half queue 7, and its op if it has one."""
    born = {"queue_id": 7, "born_timestamp": round(time.time() * 1000)}
    ops = [op(number, transaction_id, state, **born)] if state else []
    return [half(transaction_id, queue_offset=number, **born)], ops


def make(root: Path) -> None:
    """Write the lake to a folder."""
    lake = Lake(root)
    with lake.gateway() as gateway:

        def send(transaction_id: str, state: str | None, **fields: Any) -> None:
            message = half(transaction_id, **fields)
            stored = gateway.post("/v1/half", message)
            assert stored.status_code == 200, stored.text
            if state is not None:
                place = {"queue_id": stored.json()["queue_id"], "producer_group": message["producer_group"]}
                ended = gateway.post("/v1/op", op(stored.json()["queue_offset"], transaction_id, state, **place))
                assert ended.status_code == 200, ended.text

        for transaction_id in COMMITTED:
            send(transaction_id, "COMMIT")
        send("rolled-back", "ROLLBACK")
        send("open", None)
        send(SCHEDULED, "COMMIT", properties={"TIMER_DELAY_SEC": "600"})  # longer than this takes
        for transaction_id in CHECKED:
            send(transaction_id, None, producer_group="checked", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})
    lines = [landed(number, transaction_id, "COMMIT") for number, transaction_id in enumerate(LANDED)]
    lines += [landed(2, "landed-open", None), ([{"queue_id": "no half message"}], [])]
    lake.land("first", [one for halves, _ in lines for one in halves], [one for _, ops in lines for one in ops])
    lake.run("reconcile", "--available-now")
    assert lake.consume(len(COMMITTED) + len(LANDED)) == sorted(COMMITTED + LANDED)
    with answering(CHECKED[:1]) as url:
        for _ in range(3):  # the check is requested, answered and counted
            lake.run("reconcile", "--available-now", endpoint=url)
    with lake.gateway("gateway.flush=1h") as gateway:
        stored = gateway.post("/v1/half", half(IN_JOURNAL)).json()
        assert gateway.post("/v1/op", op(stored["queue_offset"], IN_JOURNAL)).status_code == 200
        gateway.kill()


def archived(version: str) -> Path:
    """The archive of a release's lake."""
    return ARCHIVES / f"release-{version}" / "lake.tar.gz"


def unpacked(archive: Path, to: Path) -> Lake:
    """A copy of a release's lake in the folder ``to``."""
    with tarfile.open(archive) as tar:
        tar.extractall(to, filter="data")
    settle(to / "data", str(_WRITTEN / "data"))
    return Lake(to / "data")


def main() -> None:
    """Make the archive of this release."""
    shutil.rmtree(_WRITTEN, ignore_errors=True)
    _WRITTEN.mkdir()
    make(_WRITTEN / "data")
    target = archived(__version__)
    target.parent.mkdir(exist_ok=True)
    with tarfile.open(target, "w:gz") as tar:
        tar.add(_WRITTEN / "data", "data", filter=_without_owner)
    shutil.rmtree(_WRITTEN)
    print(f"{target}: {target.stat().st_size} bytes")


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
