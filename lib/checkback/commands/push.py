"""`checkback push`: consumer groups whose messages are posted to URLs."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from checkback.commands.options import RUN, Common, app, command
from checkback.errors import SettingsError, missing_module
from checkback.messages.names import is_consumer_group
from checkback.settings.loading import SECRETS_OF_OTHERS


class Mode(str, Enum):
    """The content mode of CloudEvents."""

    BINARY = "binary"
    STRUCTURED = "structured"


@command(app, panel=RUN)
def push(
    options: Common,
    group: Annotated[
        str | None, typer.Argument(metavar="GROUP", help="The consumer group; without: all of push in the settings.")
    ] = None,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="As push.GROUP.topic, and so on.")] = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Where messages are posted to.")] = None,
    mode: Annotated[Mode | None, typer.Option("--mode", help="Attributes in headers, or one JSON object.")] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Up to N events a request, as a JSON array.")
    ] = None,
    content_type: Annotated[
        str | None, typer.Option("--content-type", metavar="TYPE", help="Of messages that do not say theirs.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="TAGS", help="Only messages with these tags.")] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="EXPRESSION", help="Only those for which it is true.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="first|last|TIME|BATCH", help="Where a new group begins.")
    ] = None,
    orderly: Annotated[bool, typer.Option("--orderly", help="Each queue in order.")] = False,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", help="Most requests in flight.")
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", metavar="N", help="Most requests a second.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", metavar="PORT", help="Serve Prometheus metrics, on metrics.host.")
    ] = None,
) -> None:
    """Post a topic's messages to a URL as signed CloudEvents, as a consumer group."""
    own = {
        "topic": topic,
        "url": url,
        "mode": None if mode is None else mode.value,
        "batch": batch,
        "content_type": content_type,
        "tag": tag,
        "sql": sql,
        "start_from": start,
        "orderly": orderly or None,
        "concurrency": concurrency,
        "requests_per_second": rate,
    }
    if group is None and any(value is not None for value in own.values()):
        raise SettingsError("options are of one group", fix="name it: checkback push GROUP TOPIC --url URL")
    if group is not None and not is_consumer_group(group):
        raise SettingsError("is not a consumer group's name", group, "use letters, digits, _ and - only")
    given = {f"push.{group}.{key}": value for key, value in own.items()}
    settings = options.load_for_tables(SECRETS_OF_OTHERS - {"push"}, given).settings
    known = settings.push
    if not known or (group is not None and group not in known):
        what = "no group is in push" if group is None else "there is no such group in push"
        fix = "set its topic and url there, or run checkback push GROUP TOPIC --url URL"
        raise SettingsError(what, group or "push", fix)
    try:
        from checkback.push import service
    except ModuleNotFoundError as error:
        raise missing_module(error, "consumer", "checkback push") from error

    service.push(settings, list(known) if group is None else [group], metrics_port)
