"""`checkback clients`: RocketMQ's clients that are connected to a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.commands.answering import no_pandas, print_answer
from checkback.commands.options import ANSWERS, Answer, app, command
from checkback.commands.printing import columns

if TYPE_CHECKING:
    from checkback.commands.printing import Row

#: clients in the table for people; -o json shows all
SHOWN = 500


def _kind(row: Row) -> str:
    return f"{row['language']} {row['version']}".strip()


def _topics(row: Row) -> str:
    return ", ".join(row["topics"])


_CLIENTS = columns(client="client_id", kind=_kind, address="address", connected="connected_at", topics=_topics)


@command(app, panel=ANSWERS)
def clients(options: Answer) -> None:
    """List RocketMQ's clients that are connected to the gateway (gateway.host, gateway.port)."""
    settings = options.load(unneeded=("kafka", "dashboard", "topics")).settings
    with no_pandas():
        from checkback.gateway.rocketmq.client_list import connected_clients

        rows = connected_clients(settings)
    print_answer(rows, options.output, _CLIENTS, SHOWN, "No client is connected.")
