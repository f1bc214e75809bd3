"""How the inspecting commands ask and print: without Spark, unless the tables are in a catalog."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from checkback.commands.no_pandas import NoPandas
from checkback.commands.printing import console, print_line, print_rows
from checkback.errors import SettingsError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from checkback.inspect.answers import Answers
    from checkback.settings import Settings

#: producer groups that are named where one is unknown
_GROUPS = 10
#: whether nothing but the command runs in this process
own_process = False


@contextmanager
def answering(settings: Settings, command: str) -> Iterator[Answers]:
    """Answers on the settings' tables; if only Spark can read them, on Spark, which stderr says.

    It also says if they are slow because of many small files.
    """
    from checkback.inspect.answers import Answers, SparkNeededError

    try:
        answers = Answers(settings, say=say)
    except SparkNeededError as error:
        say(f"{error.what}: Spark is started, which takes a while")
    else:
        if own_process:
            sys.meta_path.insert(0, NoPandas())  # for good: the process ends with the answer
        yield answers
        return
    from checkback.spark.session import running_session

    with running_session(settings, f"checkback-{command}", short=True) as spark:
        yield Answers(settings, spark)


def say(line: str) -> None:
    """A line on stderr."""
    print(f"checkback: {printable(line)}", file=sys.stderr, flush=True)


def none_of(answers: Answers, group: str | None, rows: pa.Table) -> str:
    """A sentence to follow `Nothing is ...` if nobody has sent anything under the group's name; it may be mistyped."""
    if group is None or rows.num_rows or group in (known := answers.producer_groups()):
        return ""
    there = ", ".join(known[:_GROUPS]) + (f" and {len(known) - _GROUPS} more" if len(known) > _GROUPS else "")
    return f" No half message is of the group {group}" + (f"; there are {there}." if known else ".")


def with_keys(answers: Answers, rows: pa.Table, as_of: str | None, most: int) -> pa.Table:
    """The rows with a column keys: those of the half messages of the first ``most`` rows; only these are looked up."""
    import pyarrow as pa

    from checkback.inspect.message_keys import NAME

    keys = answers.keys(rows.select(NAME).slice(0, most).to_pylist(), as_of)
    return rows.append_column("keys", pa.array(keys + [None] * (rows.num_rows - len(keys)), pa.string()))


def one_form(as_json: bool, as_csv: bool) -> None:
    """Raises SettingsError if both are asked for."""
    if as_json and as_csv:
        raise SettingsError("--json and --csv exclude each other", "", "give one of them")


def print_answer(
    rows: pa.Table,
    as_json: bool,
    as_csv: bool,
    most: int,
    show: Callable[[list[dict[str, Any]]], None],
    nothing: str,
) -> None:
    """Print all rows as JSON lines or CSV, or the first ``most`` as a table. Raises SettingsError."""
    from checkback.inspect.json_lines import csv_lines, json_lines, json_rows

    one_form(as_json, as_csv)
    if as_json or as_csv:
        print_rows(json_lines(rows) if as_json else csv_lines(rows))
    elif not rows.num_rows:
        print_line(nothing)
    else:
        show(list(json_rows(rows.slice(0, most))))
        if rows.num_rows > most:
            console().print(f"and {rows.num_rows - most} more; --json shows all")
