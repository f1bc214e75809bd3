"""How the inspecting commands ask and print: without Spark, unless the tables are in a catalog."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

from checkback.commands.options import Output
from checkback.commands.printing import console, print_line, print_lines, print_table
from checkback.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from checkback.commands.printing import Column, Row
    from checkback.query.answers import Answers
    from checkback.settings import Settings


class NoPandas(MetaPathFinder):
    """A finder of modules, for which there is no pandas."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002 - importlib's
        """Raises ModuleNotFoundError for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


@contextmanager
def no_pandas() -> Iterator[None]:
    """Meanwhile pandas cannot be imported. Pyarrow looks for it once, with its first array."""
    finder = NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


#: producer groups that are named where one is unknown
_GROUPS = 10
#: whether nothing but the command runs in this process
own_process = False


@contextmanager
def answering(settings: Settings, command: str) -> Iterator[Answers]:
    """Answers on the settings' tables; if only Spark can read them, on Spark, which stderr says.

    It also says if they are slow because of many small files.
    """
    from checkback.query.answers import Answers, SparkNeededError

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


def tell_horizon(horizon: int | None, since: str | None) -> None:
    """Say so if retention has removed part of what is asked for; ``horizon``: of the history (ms), if any."""
    from checkback.query.versions.as_of import parse_as_of
    from checkback.storage.timestamps import iso, ms_of

    begin = parse_as_of(since, name="--since")
    if horizon is not None and begin is not None and ms_of(begin) < horizon:
        say(f"what ended before {iso(horizon)} was removed by retention: of that only some is left")


def nothing(
    answers: Answers, subject: str, verb: str, as_of: str | None, group: str | None, **asked: str | None
) -> str:
    """The sentence in place of no rows, with what was ``asked`` for, by the words before it.

    It names the groups there are if nobody has sent anything under this name: it may be mistyped.
    """
    whose = "" if group is None else f" of the group {group}"
    words = {**{name.replace("_", " "): value for name, value in asked.items()}, "as of": as_of}
    asked_for = "".join(f" {name} {each}" for name, each in words.items() if each is not None)
    told = f"{subject}{whose} {verb}{asked_for}"
    if group is None or group in (known := answers.producer_groups()):
        return f"{told}."
    there = ", ".join(known[:_GROUPS]) + (f" and {len(known) - _GROUPS} more" if len(known) > _GROUPS else "")
    return f"{told}. No half message is of the group {group}" + (f"; there are {there}." if known else ".")


def with_keys(answers: Answers, rows: pa.Table, as_of: str | None, most: int) -> pa.Table:
    """The rows with a column keys: those of the half messages of the first ``most`` rows; only these are looked up."""
    import pyarrow as pa

    from checkback.query.message_keys import NAME

    keys = answers.keys(rows.select(NAME).slice(0, most).to_pylist(), as_of)
    return rows.append_column("keys", pa.array(keys + [None] * (rows.num_rows - len(keys)), pa.string()))


def print_answer(
    rows: pa.Table,
    output: Output,
    columns: Sequence[Column],
    most: int,
    nothing: str,
    shape: Callable[[Iterable[Row]], Iterable[Row]] = iter,
) -> None:
    """Print all rows as JSON lines or CSV, or the first ``most`` as a table for people.

    ``nothing``: the sentence if there are none; ``shape``: what makes rows of the table of these.
    """
    from checkback.query.json_lines import csv_lines, json_lines, json_rows

    if output is not Output.TABLE:
        print_lines(json_lines(rows) if output is Output.JSON else csv_lines(rows))
    elif not rows.num_rows:
        print_line(nothing)
    else:
        found = shape(json_rows(rows.slice(0, most)))
        print_table([column.title for column in columns], [[each.cell(row) for each in columns] for row in found])
        if rows.num_rows > most:
            console().print(f"and {rows.num_rows - most} more; -o json shows all")
