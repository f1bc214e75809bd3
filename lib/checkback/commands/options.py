"""Shared by the commands: the typer application, options, and loading settings from the options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from checkback import __version__
from checkback.build import commit
from checkback.errors import SettingsError
from checkback.observe.logs import set_up
from checkback.settings.loading import SECRETS_OF_OTHERS, Loaded, load
from checkback.storage.files.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Collection

    from checkback.settings import Settings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help="Transactional messages on Delta Lake.")

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings over those of conf/base.yml (YAML).")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, as transaction.timeout=2s; may be repeated."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Log more, and show the traceback of an error.")]
AvailableNow = Annotated[bool, typer.Option("--available-now", help="Work off what is there, then end.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
Csv = Annotated[bool, typer.Option("--csv", help="CSV instead of a table.")]
Group = Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only this producer group's.")]
OneTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic's.")]


def _time(option: typer.CallbackParam, value: str | None) -> str | None:
    """The text of an option, which must be a time. Raises SettingsError, which names the option as it was given."""
    from checkback.inspect.versions.as_of import parse_as_of

    parse_as_of(value, name=option.opts[0])
    return value


def _interval(option: typer.CallbackParam, value: str) -> str:
    """The text of an option, which must be a duration above zero. Raises SettingsError."""
    from checkback.messages.durations import parse_duration

    try:
        if parse_duration(value):
            return value
    except ValueError:
        pass
    raise SettingsError(f"{value[:60]!r} is no interval", option.opts[0], "write 10s, 5m or 1h")


AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        callback=_time,
        metavar="TIME",
        help="As it was then (UTC): 2026-11-20T15:00, 15:00 (today), 10m ago.",
    ),
]
_SINCE = typer.Option(
    "--since", callback=_time, metavar="TIME", help="Only from then on; as --as-of, and seen from there."
)
Since = Annotated[str, _SINCE]
SinceEver = Annotated[str | None, _SINCE]
Why = Annotated[
    str | None, typer.Option("--reason", metavar="REASON", help="Only these: CHECK_MAX, EXPIRED or CANCELLED.")
]
Every = Annotated[
    str,
    typer.Option("--every", callback=_interval, metavar="DURATION", help="The length of an interval, as 10s or 1h."),
]

Tx = Annotated[str, typer.Argument(metavar="TX", help="The transaction id.")]
Actor = Annotated[str, typer.Option(metavar="NAME", help="Who does it.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why.")]
OneGroup = Annotated[str | None, typer.Option("--group", metavar="G", help="The producer group, if several have TX.")]
QueueId = Annotated[int | None, typer.Option(metavar="N", help="Its half queue, if several half messages have TX.")]
QueueOffset = Annotated[int | None, typer.Option(metavar="N", help="Its offset in the half queue.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without: show what would be done, and on a terminal ask.")]
LeaveOut = Annotated[
    bool, typer.Option("--leave-out", help="Messages that somebody deleted from their tables stay deleted.")
]
PublishAgain = Annotated[
    bool, typer.Option("--publish-again", help="Write messages that were deleted from their tables again.")
]


def prepared(config: Path | None, overrides: list[str] | None, debug: bool, unneeded: Collection[str] = ()) -> Loaded:
    """Load the settings and set up logging, as given by the options; ``unneeded`` as `load`. Raises SettingsError."""
    set_up("text", None, debug)
    loaded = load(config, overrides or (), unneeded=unneeded)
    set_up(loaded.settings.log.format, loaded.settings.log.level, debug)
    return loaded


def prepared_for_tables(
    config: Path | None, overrides: list[str] | None, debug: bool, unneeded: Collection[str] = SECRETS_OF_OTHERS
) -> Settings:
    """Like ``prepared``, for commands that need existing tables, and none of the secrets of producers.

    Raises SettingsError, also if the tables' local folder does not exist.
    """
    return load_for_tables(config, overrides, debug, unneeded).settings


def load_for_tables(
    config: Path | None, overrides: list[str] | None, debug: bool, unneeded: Collection[str] = SECRETS_OF_OTHERS
) -> Loaded:
    """Like ``prepared_for_tables``, with the origins of the settings."""
    loaded = prepared(config, overrides, debug, unneeded)
    root = local_path(loaded.settings.storage.root)
    if loaded.settings.storage.catalog is None and root is not None and not os.path.isdir(root):
        where = f"storage.root ({loaded.origin('storage.root')})"
        raise SettingsError(f"there is no folder {root}", where, "name the folder of the tables, or reconcile first")
    return loaded


def _version(wanted: bool) -> None:
    if wanted:
        print(f"checkback {__version__} (commit {commit()})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    pass
