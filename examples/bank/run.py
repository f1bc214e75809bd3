"""The example from end to end: services, gateway and reconcile, until the books can be compared."""

from __future__ import annotations

import base64
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from examples.bank import accounts, java_accounts
from examples.bank.books import Books
from examples.bank.credits import open_books
from examples.bank.plan import GROUP, TOPIC
from examples.bank.processes import Service, free_port, wait_until_ready

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.spark.shutdown import GracefulShutdown

#: unanswered checks of one transaction before the accounts service is restarted the first time
IN_VAIN = 3

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """The result: the books, how often each service was killed, and seconds since the first transfer."""

    books: Books
    deaths: dict[str, int]
    seconds: float


def run(
    root: Path,
    count: int,
    seed: int,
    open_spark: Callable[[Any], SparkSession],
    tell: Tell,
    place: str | None = None,
    java: bool = False,
) -> Outcome:
    """Run ``count`` transfers of the plan ``seed`` in the empty folder ``root``; ``tell`` gets lines of progress.

    ``place``: of the tables, a URI for which the environment has all that is needed; None = a folder in ``root``.
    ``java``: the accounts service in Java, which sends no receipts: RocketMQ's clients do not delay transactions.

    Raises CheckbackError if a process exits by itself or a query fails.
    """
    from checkback.application.queries import reconcile
    from checkback.settings.loading import load
    from checkback.storage.tables import Tables

    place = place or str(root / "data")
    gateway_port, check_port = free_port(), free_port()
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
    os.environ[accounts.SECRET] = secret  # the settings name the variable; the file does not hold the secret
    config = root / "checkback.yml"
    config.write_text(yaml.safe_dump(settings_of(place, gateway_port, check_port, java)), "utf-8")
    settings = load(config).settings
    Tables.of(settings.storage)  # the books read them
    accounts.open_books(root / "accounts.db")
    open_books(root / "credits.db")

    url = f"http://127.0.0.1:{gateway_port}"
    told = [str(root / "accounts.db"), url, str(check_port), str(seed), str(count)]
    gateway = Service("checkback", ["gateway", "--config", str(config)], root / "gateway.log")
    in_python = Service("examples.bank.accounts", told, root / "accounts.log")
    debits = java_accounts.service(root, check_port, seed, count) if java else in_python
    read = [str(root / "credits.db"), place]
    credits_ = Service("examples.bank.credits", read, root / "credits.log")
    second = Service("examples.bank.credits", read, root / "credits-2.log")
    services = {"gateway": gateway, "accounts": debits, "credits": credits_, "credits-2": second}

    tell("starting Spark and the gateway")
    spark = open_spark(settings)
    try:
        gateway.start()
        wait_until_ready(url, gateway)
        began = time.monotonic()
        debits.start()
        credits_.start()

        def watch(stopper: GracefulShutdown) -> None:
            books = Books.read(root, place)
            tell(books.line(count))
            for service in services.values():
                # During its first absence, checks go unanswered for a while: an outage to analyse.
                outage = service is debits and debits.deaths == 1 and books.in_vain < IN_VAIN and not java
                service.watch(time.monotonic(), held=outage)
            # Killed in the middle of their work: messages are still stored and applied exactly once.
            if books.begun > count // 3 and gateway.deaths == 0:
                gateway.kill()
            if books.credited > count // 4 and credits_.deaths == 0:
                credits_.kill()
            if credits_.deaths and not second.started:  # joins the group, and takes half of the queues
                second.start()
            if books.finished(count):
                stopper.stop()

        reconcile(spark, settings, available_now=False, meanwhile=watch)
    finally:
        for service in services.values():
            service.stop()
    deaths = {name: service.deaths for name, service in services.items()}
    return Outcome(Books.read(root, place, with_receipts=not java), deaths, time.monotonic() - began)


def settings_of(place: str, gateway_port: int, check_port: int, java: bool) -> dict[str, Any]:
    """Settings with times short enough to watch.

    ``check_port``: where the accounts service answers checks; with ``java``, where its client connects to the gateway.
    """
    endpoint = f"http://127.0.0.1:{check_port}/check"
    settings: dict[str, Any] = {
        "storage": {"root": place},
        "transaction": {"timeout": "4s", "check_interval": "2s"},
        "reconcile": {"trigger": "500ms", "partitions": 2},
        "gateway": {"port": gateway_port},
        "producers": {GROUP: {"endpoints": [endpoint], "secret": f"env:{accounts.SECRET}"}},
    }
    if java:
        endpoint = f"http://127.0.0.1:{gateway_port}/v1/rocketmq/check"
        settings["transaction"]["count_undelivered"] = False
        settings["gateway"]["rocketmq"] = {"plain_port": check_port, "groups": {TOPIC: GROUP}}
        settings["producers"] = {GROUP: {"endpoints": [endpoint], "include_body": True}}
    return settings
