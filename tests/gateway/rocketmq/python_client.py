"""A producer with Apache's Python client: [KEY:SECRET@]ENDPOINT TOPIC STEP...; each step says a line of JSON.

Steps: ``send``, ``half NAME``, ``commit NAME``, ``rollback NAME``, ``wait``: until a line comes on stdin. The checker
answers COMMIT and says so.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rocketmq import ClientConfiguration, Credentials, Message, Producer, TransactionChecker, TransactionResolution


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


class Checker(TransactionChecker):  # type: ignore[misc]  # it has no types
    """Answers COMMIT."""

    def check(self, message: Any) -> Any:
        say(checked=message.body.decode(), properties=message.properties, corrupted=message.corrupted)
        return TransactionResolution.COMMIT


def message_of(topic: str, body: str) -> Any:
    message = Message()
    message.topic, message.body, message.tag, message.keys = topic, body.encode(), "paid", "k1"
    message.add_property("a", "b")
    return message


def main() -> None:
    endpoint, topic, *steps = sys.argv[1:]
    access_key, _, secret = endpoint.rpartition("@")[0].partition(":")
    configuration = ClientConfiguration(endpoint.rpartition("@")[2], Credentials(access_key, secret))
    producer = Producer(configuration, [topic], Checker())
    producer.startup()
    transactions: dict[str, Any] = {}
    for step in steps:
        verb, _, name = step.partition(" ")
        try:
            if verb == "send":
                say(sent=producer.send(message_of(topic, "normal")).offset)
            elif verb == "half":
                transactions[name] = producer.begin_transaction()
                say(half=producer.send(message_of(topic, name), transactions[name]).message_id)
            elif verb == "wait":
                sys.stdin.readline()
            else:
                end = transactions[name].commit if verb == "commit" else transactions[name].rollback
                say(ended=end().status.code)
        except Exception as error:  # noqa: BLE001 - said as the client says it
            say(error=type(error).__name__, message=str(error))
    producer.shutdown()


main()
