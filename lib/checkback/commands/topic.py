"""`checkback topic list` and `topic consume`: the topics, and the messages of one."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from checkback.commands.answering import answering, print_answer, say
from checkback.commands.options import Answer, AsOf, Output, command, topic
from checkback.commands.printing import columns, print_line, wait_for_reader
from checkback.errors import SettingsError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.consumer.browse import Browser
    from checkback.consumer.message import MessageExt
    from checkback.filter import MessageSelector

#: topics in the table for people; -o json shows all
SHOWN = 500
#: pause between two looks for new batches (s)
POLL_S = 0.2
_TOPICS = columns(topic="topic", messages="messages", last_published="last_published_at", unreadable="unreadable")


@command(topic, "list")
def list_(options: Answer, as_of: AsOf = None) -> None:
    """List the topics that have a table: how many messages, and when the last was published."""
    with answering(options.settings(), "topic-list") as answers:
        rows = answers.topics(as_of)
    print_answer(rows, options.output, _TOPICS, SHOWN, "No topic has a table.")


@command(topic)
def consume(
    options: Answer,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="TAGS", help="Only messages with these tags: 'A || B'.")
    ] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="EXPRESSION", help="Only those for which it is true: 'amount > 5'.")
    ] = None,
    start: Annotated[
        str,
        typer.Option("--from", metavar="first|last|TIME|BATCH", help="Where to begin; TIME as --as-of takes it."),
    ] = "first",
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new messages, until Ctrl-C.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="End after N messages.")] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="Show the bodies, too: as text, or base64.")] = False,
) -> None:
    """Show the messages of a topic, in order; no consumer group is joined, nothing is written."""
    settings = options.settings()
    from checkback.consumer.browse import Browser, has_topic
    from checkback.consumer.consume_from_where import parse_start
    from checkback.consumer.storage import consumer_tables, no_topic, refuse_no_tables

    selector = _selector(tag, sql)
    begin = parse_start(start, "--from")
    tables, _ = consumer_tables(settings)
    if not has_topic(tables, topic):
        refuse_no_tables(tables)
        if not follow:
            raise no_topic(tables, topic)
        say(f"{no_topic(tables, topic)}: waiting for it")
    header, line = _form(options.output, bodies)
    with suppress(KeyboardInterrupt, BrokenPipeError):  # Ctrl-C, `| head`
        if header is not None:
            print_line(header, flush=follow)
        _print_messages(Browser(tables, topic, selector, begin), follow, limit, line)


def _form(output: Output, bodies: bool) -> tuple[str | None, Callable[[MessageExt], str]]:
    """The line above the messages, and what makes one of a message."""
    from checkback.consumer.browse import as_json, header, names, text_line
    from checkback.query.json_lines import csv_line

    if output is Output.JSON:
        return None, lambda message: json.dumps(as_json(message, bodies))
    if output is Output.CSV:
        of = names(bodies)
        return csv_line(of), lambda message: csv_line(list(map(as_json(message, bodies).get, of)))
    return header(bodies), lambda message: text_line(message, bodies)


def _print_messages(browser: Browser, follow: bool, limit: int | None, line: Callable[[MessageExt], str]) -> None:
    count = 0
    failed: bool | None = None  # at the last look; None = nothing was read yet
    while True:
        shown = count
        try:
            for message in browser.read():
                print_line(line(message))
                count += 1
                if count == limit:
                    return
        except StorageError as error:  # a store that has been read may throttle for a while
            if failed is None:
                raise
            if not failed:
                say(str(error))
            failed = True
        else:
            failed = False
        if not follow:
            return
        if count > shown:
            print(end="", flush=True)
        if not wait_for_reader(POLL_S):
            return


def _selector(tag: str | None, sql: str | None) -> MessageSelector | None:
    """None = all messages. Raises SettingsError, SelectorError."""
    from checkback.filter import MessageSelector

    if tag is not None and sql is not None:
        raise SettingsError("a message is selected by either", "--tag, --sql", "give one of the two")
    if sql is not None:
        return MessageSelector.by_sql(sql)
    selector = MessageSelector.by_tag(tag)
    return selector if selector.columns or not selector.matches() else None
