"""POSTs under way at once from one thread, and the words for those that failed."""

from __future__ import annotations

import errno
from contextlib import closing

import pycurl
import pytest

from check.servers import SHORT, Server, always, late, reply
from checkback.check.connections import Connections, Post, Response, describe


def test_posts_under_way_at_once_have_their_own_responses() -> None:
    """Each key has what its POST brought, whichever comes first; nothing else is there afterwards."""
    came: dict[str, Response] = {}
    with (
        Server(always(reply(b"a"))) as a,
        Server(always(reply(b"b", "404 Not Found"))) as b,
        Server(late) as hangs,
        closing(Connections[str](SHORT, None)) as connections,
    ):
        for name, server in {"hangs": hangs, "a": a, "b": b}.items():
            connections.post(Post(server.url, ["X-Name: " + name], b"{}"), name)
        while len(came) < 3:
            came.update(connections.responses())
        assert connections.responses(0) == []
    assert {name: (one.status, one.body, one.error, one.sent) for name, one in came.items()} == {
        "a": (200, b"a", None, True),
        "b": (404, b"b", None, True),
        "hangs": (0, b"", "timed out after 0.3 s", True),
    }
    assert [server.received[0].headers["x-name"] for server in (a, b, hangs)] == ["a", "b", "hangs"]


def test_close_ends_what_is_under_way() -> None:
    with Server(late) as hangs:
        connections = Connections[int](60, None)
        connections.post(Post(hangs.url, [], b"{}"), 1)
        assert connections.responses(0) == []
        connections.close()


def test_headers_are_those_of_the_final_response() -> None:
    lines = [
        b"HTTP/1.1 103 Early Hints\r\n",
        b"Retry-After: 1\r\n",
        b"\r\n",
        b"HTTP/1.1 503 Busy\r\n",
        b"retry-AFTER:  20 \r\n",
    ]
    assert Response(503, headers=lines).header("Retry-After") == "20"
    assert Response(503, headers=lines[:4]).header("Retry-After") is None


@pytest.mark.parametrize(
    ("code", "message", "system", "words"),
    [
        (pycurl.E_COULDNT_CONNECT, "Failed to connect to h port 1", errno.ECONNREFUSED, "connection refused"),
        (pycurl.E_COULDNT_CONNECT, "Failed to connect to h port 1", errno.ENETUNREACH, "network is unreachable"),
        (pycurl.E_COULDNT_CONNECT, "Failed to connect to h port 1", 0, "not connected"),
        (pycurl.E_RECV_ERROR, "Recv failure", errno.ECONNRESET, "connection reset"),
        (pycurl.E_RECV_ERROR, "quote", 0, "answer cut short"),
        (
            pycurl.E_PEER_FAILED_VERIFICATION,
            "SSL certificate problem: certificate has expired",
            errno.ECONNREFUSED,  # of another address of the host
            "certificate not accepted: certificate has expired",
        ),
        (
            pycurl.E_PEER_FAILED_VERIFICATION,
            "SSL: certificate subject name 'quote' does not match target hostname 'h'",
            0,
            "certificate not accepted: it is not for this host",
        ),
        (pycurl.E_URL_MALFORMAT, "URL rejected: quote", 0, "failed: libcurl error 3"),
    ],
)
def test_failure_is_told_without_a_word_of_the_server(code: int, message: str, system: int, words: str) -> None:
    assert describe(code, message, system, 5) == words
