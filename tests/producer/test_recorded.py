"""Behaviours recorded from a real RocketMQ, played in real time through the SDK, gateway and reconcile: end to end."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from conftest import TRACE
from gateway.process import Gateway
from producer.playing import Part, Stage, instances
from producer.recorded import GONE, Behaviour, behaviours
from producer.verdicts import Evidence, Rules, faults
from support.jvm import ENVIRON

pytest.importorskip("uvicorn", reason="uvicorn is not installed: the gateway does not run")

NOBODY = "http://127.0.0.1:9/check"
#: seconds for all that must happen; a test that needs so long has failed
PATIENCE_S = 400
SLOW = "CHECKBACK_SLOW" in os.environ
#: CHECKBACK_SLOW=1: as recorded, 462 at a time; else five times as fast, each behaviour once
SCALE, COPIES, CHECK_MAX = (1.0, 3, 15) if SLOW else (0.2, 1, 6)
TIMEOUT_S, CHECK_INTERVAL_S = 4.0 * SCALE, 2.0 * max(SCALE, 0.5)


@contextmanager
def reconciling(root: Path, overrides: list[str], environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`checkback reconcile` as a process of its own; it ends with SIGTERM, and must exit 0 without a word."""
    command = [sys.executable, "-m", "checkback", "reconcile", "--set", f"storage.root={root}"]
    for override in overrides:
        command += ["--set", override]
    log = root.parent / "reconcile.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **ENVIRON, **environ}, cwd=root.parent
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert (code, log.read_text("utf-8")) == (0, "")


def await_that(what: str, met: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Return when the condition is met, while the process runs."""
    until = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not met():
        assert process.poll() is None, "reconcile has ended by itself"
        assert time.monotonic() < until, f"it never came that {what}"
        pause.wait(0.5)


def count(root: Path, table: str) -> int:
    """Rows of a table, 0 when it is not there yet."""
    try:
        return int(DeltaTable(str(root / table)).count())
    except TableNotFoundError:
        return 0


def committed_now(number: int) -> Behaviour:
    """A transaction of our own: when it is decided, everything that landed before it has been seen."""
    plan = behaviours(TRACE, SCALE, 1)
    plain = next(behaviour for behaviour in plan if behaviour.script == "commit_now")
    message = replace(plain.message, transaction_id=f"mark-{number}")
    return replace(plain, begins_s=0.0, label=f"mark {number}", message=message)


@pytest.mark.processes
@pytest.mark.spark
def test_recorded_behaviours_each_end_once_and_as_they_must(tmp_path: Path) -> None:
    """Each committed transaction is delivered once, none both delivered and discarded, every decision explained."""
    root = tmp_path / "data"
    plan = behaviours(TRACE, SCALE, COPIES)
    groups = sorted({behaviour.group for behaviour in plan})
    tokens = {group: secrets.token_hex(16) for group in groups}
    signed = {group: "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode() for group in groups}
    environ = {f"TOKEN_{group}": token for group, token in tokens.items()}
    environ |= {f"SECRET_{group}": secret for group, secret in signed.items()}
    with instances(signed) as both:
        urls = [url for url, _ in both.values()]
        overrides = [
            f"transaction.timeout={round(TIMEOUT_S * 1000)}ms",
            f"transaction.check_interval={round(CHECK_INTERVAL_S * 1000)}ms",
            f"transaction.check_max={CHECK_MAX}",
            "reconcile.trigger=200ms",
            "reconcile.partitions=2",
            "spark.master=local[2]",
        ]
        for group in groups:
            endpoints = [NOBODY] if group == GONE else urls
            overrides += [
                f"producers.{group}.endpoints={endpoints}".replace("'", '"'),
                f"producers.{group}.secret=env:SECRET_{group}",
                f"producers.{group}.token=env:TOKEN_{group}",
            ]
        with Gateway(root, *overrides, environ=environ) as gateway, reconciling(root, overrides, environ) as process:

            def play(plan: list[Behaviour]) -> list[Part]:
                stage = Stage(gateway.url, tokens, plan)
                for _, instance in both.values():
                    instance.stage = stage
                stage.play()
                return stage.parts

            parts = play([committed_now(0)])
            await_that("the first transaction is decided", lambda: count(root, "decisions") == 1, process)
            began = time.monotonic()
            with ThreadPoolExecutor(1) as pool:
                playing = pool.submit(play, plan)
                await_that("all is played", playing.done, process)
                parts += playing.result()
            await_that("all are decided", lambda: count(root, "decisions") >= len(parts), process)
            seconds = time.monotonic() - began
            await_that(
                "all checks have an answer",
                lambda: count(root, "check_answers") >= count(root, "check_requests"),
                process,
            )
            last = play([committed_now(1)])
            parts += last
            await_that("the last transaction is decided", lambda: count(root, "decisions") >= len(parts), process)
            states = {
                part.transaction_id: gateway.get(
                    f"/v1/transactions/{part.transaction_id}",
                    token=tokens[part.behaviour.group],
                    producer_group=part.behaviour.group,
                ).json()["state"]
                for part in parts[:: len(parts) // 20]
            }
    evidence = Evidence.read(root)
    rules = Rules(TIMEOUT_S, CHECK_INTERVAL_S, CHECK_MAX, dict(zip(urls, "AB", strict=True)))
    ended = Counter((row["state"], row["source"]) for row in evidence.decisions)
    print(
        f"{len(plan)} behaviours decided in {seconds:.0f} s: {dict(ended)}; "
        f"{len(evidence.requests)} checks, {len(evidence.ops)} ops, {len(evidence.published)} published, "
        f"{len(evidence.discarded)} discarded"
    )
    assert faults(parts, evidence, rules) == []
    decided = {row["transaction_id"]: row["state"] for row in evidence.decisions}
    assert {name: decided[name] for name in states} == states
