"""The benchmark's endpoint is a true one: it answers as the contract says, and is gone afterwards."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from check.quick_endpoint import endpoint
from check.servers import request
from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.check.wire import Message


@pytest.mark.processes
@pytest.mark.parametrize("state", ["COMMIT", "ROLLBACK", "UNKNOWN"])
def test_quick_endpoint_says_its_state_of_every_transaction(state: str) -> None:
    """Whatever its id, however long the request, and from several processes."""
    large = request(message=Message(body=bytes(1 << 20)))
    with endpoint(2, state) as url:
        assert urlsplit(url).hostname == "127.0.0.1"
        with CheckClient({"orders": CheckedGroup((url,), include_body=True)}, 5) as client:
            asked = [large, *(request(transaction_id=f"ä-{number}") for number in range(20))]
            assert [client.ask(one).outcome for one in asked] == [state] * 21
    with CheckClient({"orders": CheckedGroup((url,))}, 5) as client:
        assert client.ask(request()).error == "connection refused"
