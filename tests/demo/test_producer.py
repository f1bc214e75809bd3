"""The example producer, asked by the real client: it says what the trace's producers said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests

from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.check.fair_scheduler import CheckScheduler
from checkback.check.wire import CheckRequest
from examples.producer import ExampleProducer, read_script, said

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACE = Path(__file__).parents[1] / "data" / "rocketmq-trace" / "check_answers.json"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SCRIPT = {"t1": ["UNKNOW", "COMMIT"], "t2": ["EXCEPTION", "ROLLBACK"], "t3": ["A:UNKNOW,B:COMMIT"]}


def check(transaction_id: str, times: int = 1) -> CheckRequest:
    return CheckRequest(0, 1, transaction_id, "g", "t", times, 1_795_227_064_579)


@pytest.fixture
def producer() -> Iterator[ExampleProducer]:
    with ExampleProducer(SCRIPT) as running:
        yield running


@pytest.fixture
def client(producer: ExampleProducer) -> Iterator[CheckClient]:
    with CheckClient({"g": CheckedGroup(tuple(producer.endpoints))}, 5) as asking:
        yield asking


@pytest.mark.parametrize(("times", "state"), [(1, "UNKNOWN"), (2, "COMMIT"), (3, "COMMIT"), (15, "COMMIT")])
def test_answers_follow_the_script_the_last_repeats(client: CheckClient, times: int, state: str) -> None:
    assert client.ask(check("t1", times)).outcome == state


def test_exception_is_a_500_of_both_instances(client: CheckClient, producer: ExampleProducer) -> None:
    answer = client.ask(check("t2"))
    assert (answer.outcome, answer.error) == ("NO_ANSWER", "status 500")
    assert answer.failed_tries == ((producer.endpoints[0], "status 500"),)
    assert client.ask(check("t2", 2)).outcome == "ROLLBACK"


def test_instances_answer_each_their_own(client: CheckClient, producer: ExampleProducer) -> None:
    """The first check goes to A, the second to B."""
    answers = [client.ask(check("t3", times)) for times in (1, 2, 3)]
    assert [answer.outcome for answer in answers] == ["UNKNOWN", "COMMIT", "UNKNOWN"]
    assert [answer.endpoint for answer in answers] == [*producer.endpoints, producer.endpoints[0]]


def test_transaction_unknown_is_404(client: CheckClient) -> None:
    assert client.ask(check("t9")).error == "status 404"


def test_checks_are_counted_across_threads(client: CheckClient, producer: ExampleProducer) -> None:
    """Of the producer, which has one for each connection."""
    client.ask_all(CheckScheduler([check("t1")] * 100 + [check("t9")] * 5), 8)
    assert producer.checks_received == 110  # both instances were asked for t9
    assert producer.checks_by_transaction == {"t1": 100, "t9": 10}


def test_mind_changed_is_the_new_answer(client: CheckClient, producer: ExampleProducer) -> None:
    producer.change_mind("t1", "ROLLBACK")
    assert client.ask(check("t1")).outcome == "ROLLBACK"


def test_signature_is_verified_when_there_is_a_secret() -> None:
    with ExampleProducer(SCRIPT, SECRET) as producer:
        endpoint = tuple(producer.endpoints[:1])
        groups = {
            "g": CheckedGroup(endpoint, SECRET),
            "other": CheckedGroup(endpoint, "whsec_" + "A" * 32),
            "none": CheckedGroup(endpoint),
        }
        with CheckClient(groups, 5) as client:
            errors = [client.ask(CheckRequest(0, 1, "t1", group, "t", 1, 1)).error for group in groups]
        assert errors == [None, "status 401", "status 401"]
        assert producer.checks_received == 1


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/check", b"{}", 404), ("/a/check", b"{}", 400), ("/a/check", b"\xff", 400), ("/b/check", b"[]", 400)],
)
def test_request_malformed_is_refused(producer: ExampleProducer, path: str, body: bytes, status: int) -> None:
    address = producer.endpoints[0].removesuffix("/a/check")
    assert requests.post(address + path, data=body, timeout=5).status_code == status


def test_producer_gone_answers_no_more() -> None:
    """Not even on a connection that is kept alive."""
    with ExampleProducer(SCRIPT) as producer:
        client = CheckClient({"g": CheckedGroup(tuple(producer.endpoints[:1]))}, 5)
        assert client.ask(check("t1")).outcome == "UNKNOWN"
    assert client.ask(check("t1")).error == "connection refused"
    client.close()


def test_trace_all_transactions_answer_as_recorded() -> None:
    """154 transactions of a real broker, three checks each."""
    script = json.loads(TRACE.read_text())
    outcome = {"UNKNOW": "UNKNOWN", "EXCEPTION": "NO_ANSWER"}
    with ExampleProducer(TRACE) as producer, CheckClient({"g": CheckedGroup(tuple(producer.endpoints))}, 5) as client:
        for transaction_id, entry in script.items():
            for times in (1, 2, 3):
                recorded = entry["check_answers"][min(times, len(entry["check_answers"])) - 1]
                if ":" in recorded:
                    recorded = recorded.split(",")[(times - 1) % 2].split(":")[1]
                assert client.ask(check(transaction_id, times)).outcome == outcome.get(recorded, recorded)
    assert len(script) == len(read_script(TRACE)) == 154


def test_instance_not_named_says_unknown() -> None:
    assert said(["B:COMMIT"], 1, "A") == "UNKNOWN"
