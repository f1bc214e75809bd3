"""`python -m examples.outbox`: orders in PostgreSQL, an outbox, its copy in Delta, `land --table`; the books balance.

The copier and `land` are killed in the middle, and started again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import psycopg
import typer
from deltalake import DeltaTable

from checkback.errors import CheckbackError
from examples.bank.processes import Service
from examples.launch import command, launch, make_anew
from examples.outbox.postgres import postgres
from examples.outbox.shop import OPENING, TOPIC, create, sell

_PATIENCE_S = 600


def main(
    root: Annotated[Path, typer.Option(help="Folder of the tables and logs; it is emptied first.")] = Path(
        "data/outbox"
    ),
    count: Annotated[int, typer.Option(min=10, help="Orders.")] = 500,
) -> None:
    """Run the example."""
    make_anew(root)
    root = root.resolve()
    with postgres() as url:
        create(url)
        debited, landed = _run(root, url, count)
    credited: Counter[str] = Counter()
    rows = DeltaTable(str(root / "data/topics" / TOPIC)).to_pyarrow_table(columns=["body"]).column(0).to_pylist()
    for body in rows:
        order = json.loads(body)
        credited[order["account"]] += order["amount"]
    rejected = len(DeltaTable(str(root / "data/rejected")).to_pyarrow_table(columns=["reason"]))
    print(f"{len(rows)} orders in PostgreSQL, the outbox and the topic; {rejected} rows came twice")
    print(f"debited {sum(debited.values())}, published {credited.total()}")
    print(f"Look at the tables: {command()} status --set storage.root={root}/data")
    if credited != debited or len(rows) != landed:
        raise CheckbackError("the books do not balance", str(root))
    print("The books balance.")


def _run(root: Path, url: str, count: int) -> tuple[Counter[str], int]:
    """What was debited by account, and the number of orders, once all of them are in the topic."""
    outbox, log = root / "outbox", root / "processes.log"
    copier = Service("examples.outbox.copier", [url, str(outbox), str(root / "position")], log)
    settings = ["--set", f"storage.root={root}/data", "--set", "reconcile.trigger=500ms"]
    land = Service("checkback", ["land", "--table", "--outbox", str(outbox), *settings], log)
    services = copier, land
    try:
        copier.start()
        sell(url, 0, count // 2)
        _wait("the outbox is copied", lambda: _exists(outbox), services)
        land.start()
        _wait("rows have landed", lambda: _rows(root / "data/half") > 0, services)
        for service in services:
            service.kill()
        print("the copier and land were killed")
        (root / "position").write_text("0")  # as if the kill had come before it was noted
        sell(url, count // 2, count - count // 2)
        with psycopg.connect(url) as database:
            orders = database.execute("SELECT count(*) FROM outbox").fetchone()
            debited = database.execute("SELECT id, %s - balance FROM account", (OPENING,)).fetchall()
        _wait("all rows have landed", lambda: _rows(root / "data/half") >= (orders or (0,))[0], services)
    finally:
        for service in services:
            service.stop()
    reconcile = [sys.executable, "-m", "checkback", "reconcile", "--available-now", *settings]
    with log.open("ab") as output:
        subprocess.run(reconcile, check=True, stdout=output, stderr=output)  # noqa: S603 - our own
    return Counter({account: int(amount) for account, amount in debited if amount}), (orders or (0,))[0]


def _wait(what: str, done: Callable[[], bool], services: tuple[Service, ...]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        for service in services:
            if service.started:
                service.watch(time.monotonic())
        if time.monotonic() > deadline:
            raise CheckbackError(f"{what}: not within {_PATIENCE_S} s", fix="see processes.log")
        time.sleep(0.2)
    print(what)


def _exists(table: Path) -> bool:
    return (table / "_delta_log").exists() and DeltaTable.is_deltatable(str(table))


def _rows(table: Path) -> int:
    return len(DeltaTable(str(table)).to_pyarrow_table(columns=["queue_offset"])) if _exists(table) else 0


if __name__ == "__main__":
    launch(main)
