"""The typer application, the options that several commands have, and how a function becomes a command."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from checkback import __version__
from checkback.build import commit
from checkback.errors import SettingsError
from checkback.observe.logs import set_up
from checkback.settings.loading import SECRETS_OF_OTHERS, Loaded, load
from checkback.storage.files.paths import local_path

if TYPE_CHECKING:
    from checkback.settings import Settings

_Command = TypeVar("_Command", bound=Callable[..., None])
Given = Mapping[str, "str | float | None"]

app = typer.Typer(
    pretty_exceptions_enable=False,
    help="Transactional messages on Delta Lake.",
    epilog="COMMAND --help shows its options. Documentation: docs/ and README.md of the project.",
)
RUN, ANSWERS, OBJECTS, SETTINGS = "Run", "Answers", "Transactions, topics, consumer groups", "Settings"
tx = typer.Typer(help="Transactions: list, describe, decisions; resolve, cancel, resume.")
topic = typer.Typer(help="Topics: list, consume.")
group = typer.Typer(help="Consumer groups: list, describe; reset, reconsume, remove-topic, remove.")
config = typer.Typer(help="Settings: show.")
app.add_typer(tx, name="tx", rich_help_panel=OBJECTS)
app.add_typer(topic, name="topic", rich_help_panel=OBJECTS)
app.add_typer(group, name="group", rich_help_panel=OBJECTS)
app.add_typer(config, name="config", rich_help_panel=SETTINGS)


class Output(str, Enum):
    """The form of an answer."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, as transaction.timeout=2s; may be repeated."),
]


@dataclass(frozen=True, kw_only=True)
class Common:
    """The options of every command."""

    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings over those of conf/base.yml (YAML).")
    ] = None
    overrides: Set = None
    debug: Annotated[bool, typer.Option("--debug", help="Log more, and show the traceback of an error.")] = False

    def load(self, unneeded: Collection[str] = ("push", "topics"), given: Given = MappingProxyType({})) -> Loaded:
        """Load the settings and set up logging. Raises SettingsError.

        ``unneeded``: as `load`; ``given``: what options of their own set, by key; None = they do not.
        """
        set_up("text", None, self.debug)
        own = [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
        loaded = load(self.config, [*(self.overrides or ()), *own], unneeded=unneeded)
        set_up(loaded.settings.log.format, loaded.settings.log.level, self.debug)
        return loaded

    def load_for_tables(
        self, unneeded: Collection[str] = SECRETS_OF_OTHERS, given: Given = MappingProxyType({})
    ) -> Loaded:
        """As ``load``, for commands that need existing tables, and none of the secrets of producers.

        Raises SettingsError, also if the tables' local folder does not exist.
        """
        loaded = self.load(unneeded, given)
        root = local_path(loaded.settings.storage.root)
        if loaded.settings.storage.catalog is None and root is not None and not os.path.isdir(root):
            where = f"storage.root ({loaded.origin('storage.root')})"
            raise SettingsError(
                f"there is no folder {root}", where, "name the folder of the tables, or reconcile first"
            )
        return loaded

    def settings(self) -> Settings:
        """The settings of ``load_for_tables``."""
        return self.load_for_tables().settings


@dataclass(frozen=True, kw_only=True)
class Answer(Common):
    """The options of a command that answers."""

    output: Annotated[Output, typer.Option("-o", "--output", help="The form of the answer.")] = Output.TABLE

    @property
    def for_people(self) -> bool:
        """Whether the answer is a table."""
        return self.output is Output.TABLE


@dataclass(frozen=True, kw_only=True)
class Change(Answer):
    """The options of a command that an operator changes something with."""

    actor: Annotated[str, typer.Option(metavar="NAME", envvar="USER", help="Who does it.")]
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why.")]
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it. Without: show what would be done, and on a terminal ask.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False

    def __post_init__(self) -> None:
        if self.yes and self.dry_run:
            raise SettingsError("--yes and --dry-run exclude each other", fix="give one of them")


def command(parent: typer.Typer, name: str | None = None, panel: str | None = None) -> Callable[[_Command], _Command]:
    """Register a function as a command of ``parent``; a dataclass among its parameters stands for the fields' options.

    ``panel``: under which `--help` lists it.
    """

    def register(function: _Command) -> _Command:
        own: list[inspect.Parameter] = []
        shared: list[inspect.Parameter] = []
        classes: dict[str, Any] = {}
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            kind: Any = parameter.annotation
            if is_dataclass(kind):
                classes[parameter.name] = kind
                shared += _options_of(kind)
            else:
                own.append(parameter.replace(kind=parameter.KEYWORD_ONLY))

        @wraps(function)
        def run(**given: Any) -> None:
            for argument, options in classes.items():
                given[argument] = options(**{field.name: given.pop(field.name) for field in fields(options)})
            function(**given)

        parameters = [*own, *shared]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        parent.command(name, rich_help_panel=panel)(run)
        return function

    return register


def _options_of(options: Any) -> list[inspect.Parameter]:
    """The parameters of an options class; those of the classes that it extends come last."""
    kinds = get_type_hints(options, include_extras=True)
    parameters = inspect.signature(options).parameters
    names = [name for one in options.__mro__ for name in inspect.get_annotations(one) if name in parameters]
    return [parameters[name].replace(annotation=kinds[name]) for name in names]


def _time(option: typer.CallbackParam, value: str | None) -> str | None:
    """The text of an option, which must be a time. Raises SettingsError, which names the option as it was given."""
    from checkback.query.versions.as_of import parse_as_of

    parse_as_of(value, name=option.opts[0])
    return value


AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        callback=_time,
        metavar="TIME",
        help="As it was then (UTC): 2026-11-20T15:00, 15:00 (today), 10m ago.",
    ),
]
SINCE = typer.Option(
    "--since", callback=_time, metavar="TIME", help="Only from then on; as --as-of, and seen from there."
)
Since = Annotated[str | None, SINCE]
Ended = Annotated[
    str | None,
    typer.Option("--since", callback=_time, metavar="TIME", help="Not what ended before that; as --as-of elsewhere."),
]
OfGroup = Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only this producer group's.")]
OfTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic's.")]
ConsumerGroup = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
AvailableNow = Annotated[bool, typer.Option("--available-now", help="Work off what is there, then end.")]


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
