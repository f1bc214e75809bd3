"""`python -m examples.bank`: runs the example, shows its progress, and compares the books."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from checkback.errors import missing_module
from examples.bank.plan import ACCOUNTS, OPENING, RECEIPT_DELAY, Fate, transfers
from examples.bank.run import Outcome, run
from examples.launch import command, launch, make_anew

if TYPE_CHECKING:
    from collections.abc import Iterator

_COLOUR = {"COMMIT": "green", "ROLLBACK": "yellow", "DISCARD": "red"}


class Accounts(str, Enum):
    """What the accounts service is written in."""

    PYTHON = "python"
    JAVA = "java"


class Store(str, Enum):
    """Where the example's tables are."""

    FOLDER = "folder"
    S3 = "s3"


def main(
    root: Annotated[Path, typer.Option(help="Folder for databases and tables; recreated.")] = Path("data/bank"),
    count: Annotated[int, typer.Option("--transfers", min=1, max=100_000, help="How many.")] = 120,
    seed: Annotated[int, typer.Option(help="Which plan.")] = 1,
    store: Annotated[Store, typer.Option(help="Where the tables are: in a folder, or on an S3 server.")] = Store.FOLDER,
    accounts: Annotated[
        Accounts, typer.Option(help="The accounts service: in Python, or in Java with RocketMQ's client.")
    ] = Accounts.PYTHON,
) -> None:
    """Transfer money between two services that are killed now and then, and see that the books balance."""
    from checkback.spark.session import open_session

    console = Console(width=None if sys.stdout.isatty() else 140)
    make_anew(root)
    with console.status("starting") as status, _place(store) as place:
        java = accounts is Accounts.JAVA
        outcome = run(root.resolve(), count, seed, open_session, status.update, place, java)
    _show(console, outcome, seed, count)
    if store is Store.FOLDER:
        console.print(f"\nThe tables: {root}/data, the databases and logs beside them.")
        console.print(f"Look at them: {command()} status --set storage.root={root}/data")
        console.print(f"              {command()} group list --set storage.root={root}/data")
    else:
        console.print(f"\nThe tables were on an S3 server, which kept them in memory; databases and logs: {root}.")
    faults = outcome.books.faults()
    for fault in faults:
        print(f"checkback: {fault}", file=sys.stderr)
    raise typer.Exit(1 if faults else 0)


@contextmanager
def _place(store: Store) -> Iterator[str | None]:
    """The place of the tables while it is there; None = the default. Raises SettingsError.

    The environment has the server's address, for all processes of the example.
    """
    if store is Store.FOLDER:
        yield None
        return
    try:
        from examples.s3_server import ROOT, options, s3_server
    except ImportError as error:
        raise missing_module(error, "dev", "--store s3") from error
    with s3_server() as port:
        os.environ.update({name.upper(): value for name, value in options(port).items()})
        yield f"{ROOT}/bank"


def _show(console: Console, outcome: Outcome, seed: int, count: int) -> None:
    books = outcome.books
    ends: dict[tuple[str, str], int] = {}
    for transfer in transfers(seed, count):
        state, source, checks = books.decision(transfer) or ("killed before it was sent", "", 0)
        end = f"[{_COLOUR.get(state, 'white')}]{state}[/]" + (f" by {source}" if source else "")
        key = (transfer.fate.value, end + (" after a check" if checks and source == "producer" else ""))
        ends[key] = ends.get(key, 0) + 1
    table = Table("what befell the transfer", "how it ended", "transfers", box=None)
    order = [fate.value for fate in Fate]
    for (fate, end), number in sorted(ends.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        table.add_row(fate, end, str(number))
    console.print(table)
    money = Table("", "before", "after", box=None)
    money.add_row("accounts service, all accounts", str(ACCOUNTS * OPENING), str(books.debtors))
    money.add_row("credits service, all accounts", "0", str(books.creditors))
    money.add_row("dead letters", "0", str(sum(books.dead)))
    money.add_row("all", str(ACCOUNTS * OPENING), str(books.debtors + books.creditors + sum(books.dead)))
    console.print("", money)
    console.print(
        f"\n{count} transfers in {outcome.seconds:.0f} s; the accounts service was killed {outcome.deaths['accounts']} "
        f"times, the credits service {outcome.deaths['credits']} times; {books.checks} checks were sent."
    )
    if books.with_receipts:
        console.print(
            f"{len(books.delivered)} receipts were delivered, each once and {RECEIPT_DELAY.seconds} s or more after "
            "its transfer was committed."
            if not books.faults_of_receipts()
            else "[red]The receipts are not right.[/]"
        )
    console.print("[red]The books do not balance.[/]" if books.faults() else "[green]The books balance.[/]")


if __name__ == "__main__":
    launch(main)
