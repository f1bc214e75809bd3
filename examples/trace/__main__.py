"""`python -m examples.trace`: lands the bundled trace, answers its checks, and shows the outcome."""

from __future__ import annotations

import base64
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from examples.launch import command, launch, make_anew
from examples.producer import ExampleProducer
from examples.trace.recording import BUNDLED, Trace

if TYPE_CHECKING:
    from checkback.spark.shutdown import GracefulShutdown

#: an endpoint that never answers: nothing listens on the discard port
NOBODY = "http://127.0.0.1:9/check"
GONE = "g_gone"


def main(
    root: Annotated[Path, typer.Option(help="Folder for the tables; recreated.")] = Path("data/demo"),
    trace: Annotated[Path, typer.Option(help="Folder with half.jsonl, op.jsonl and check_answers.json.")] = BUNDLED,
) -> None:
    """Run the trace of a real broker through Checkback, with an example producer that answers the checks."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    _run(console, root, Trace(trace))


def _run(console: Console, root: Path, bundled: Trace) -> None:
    from checkback.application.queries import reconcile
    from checkback.landing.file_query import land
    from checkback.settings import Settings
    from checkback.spark.session import open_session
    from checkback.storage.tables import Tables
    from examples.trace import report

    make_anew(root)
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
    starting = console.status("starting Spark (the first time it fetches Delta's JARs)")
    with starting as status, ExampleProducer(bundled.answers, secret=secret) as producer:
        settings = Settings.model_validate(_settings(root, bundled, producer.endpoints, secret))
        tables = Tables.of(settings.storage)
        spark = open_session(settings, "checkback-demo")
        status.update("landing the trace")
        moved = bundled.moved_to(int(time.time() * 1000), root / "input")
        landed = land(spark, settings, str(moved.half), str(moved.op), available_now=True)
        console.print(f"landed {landed.half} half messages and {landed.op} ops, rejected {landed.rejected}")
        status.update("the first batch")

        def watch(stopper: GracefulShutdown) -> None:
            progress = report.Progress.read(spark, tables, landed.half)
            status.update(progress.line())
            if progress.pending == 0:
                stopper.stop()

        began = time.monotonic()
        reconcile(spark, settings, available_now=False, meanwhile=watch)
        console.print(report.Progress.read(spark, tables, landed.half).line())
        received = producer.checks_received
    rows = report.decisions(spark, tables)
    report.show(console, rows, moved.labels(), report.published(spark, tables, rows))
    console.print(
        f"\n{len(rows)} of {landed.half} transactions decided, each once, in {time.monotonic() - began:.0f} s; "
        f"the example producer received {received} checks.\nThe tables: {tables.root}\n"
        f"Look at them: {command()} status --set storage.root={root}"
    )


def _settings(root: Path, trace: Trace, endpoints: list[str], secret: str) -> dict[str, Any]:
    """The broker's times, as in the trace; one group's producer is gone for good."""
    producer = {"endpoints": endpoints, "secret": secret}
    return {
        "storage": {"root": str(root)},
        "transaction": {"timeout": "4s", "check_interval": "2s"},
        "reconcile": {"trigger": "500ms", "partitions": 2},
        "producers": {group: {"endpoints": [NOBODY]} if group == GONE else producer for group in trace.groups()},
    }


if __name__ == "__main__":
    launch(main)
