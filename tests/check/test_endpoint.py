"""Endpoints of a group: taken in turn, left alone when they are broken, tried again; what was delivered."""

from __future__ import annotations

import socket
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from check.servers import (
    SHORT,
    Handler,
    Received,
    Server,
    Wire,
    always,
    hang_up,
    late,
    reply,
    request,
    says,
    unused_url,
)
from checkback.check.circuit_breaker import CircuitBreaker, Limits
from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.check.fair_scheduler import CheckScheduler
from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.check.wire import CheckAnswer


def ask(*urls: str, times: int = 1, timeout_s: float = SHORT) -> CheckAnswer:
    with CheckClient({"orders": CheckedGroup(endpoints=urls)}, timeout_s) as client:
        return client.ask(request(times=times))


def answer_of(handler: Handler, timeout_s: float = SHORT) -> CheckAnswer:
    with Server(handler) as server:
        return ask(server.url, timeout_s=timeout_s)


@pytest.fixture
def commits() -> Iterator[Server]:
    with Server(always(reply(says("COMMIT")))) as server:
        yield server


@pytest.fixture
def fails() -> Iterator[Server]:
    with Server(always(reply(b"", "503 Service Unavailable"))) as server:
        yield server


def test_endpoint_fails_next_answers(commits: Server, fails: Server) -> None:
    """The endpoints are one service: the next one is asked, and the answer says what went before."""
    nobody = unused_url()
    answer = ask(nobody, fails.url, commits.url)
    assert (answer.outcome, answer.endpoint, answer.error) == ("COMMIT", commits.url, None)
    assert answer.failed_tries == ((nobody, "connection refused"), (fails.url, "status 503"))


def test_endpoints_all_fail_last_is_the_error(fails: Server) -> None:
    nobody = unused_url()
    answer = ask(fails.url, nobody)
    assert (answer.outcome, answer.endpoint, answer.error) == ("NO_ANSWER", nobody, "connection refused")
    assert answer.failed_tries == ((fails.url, "status 503"),)


def test_endpoint_unknown_is_an_answer(commits: Server) -> None:
    """Who says UNKNOWN has answered: the others are not asked."""
    with Server(always(reply(says("UNKNOWN")))) as unsure:
        answer = ask(unsure.url, commits.url)
    assert (answer.outcome, answer.failed_tries, commits.received) == ("UNKNOWN", (), [])


@pytest.mark.parametrize(("times", "first"), [(1, 0), (2, 1), (3, 2), (4, 0), (15, 2)])
def test_endpoints_are_taken_in_turn(commits: Server, times: int, first: int) -> None:
    urls = [f"{commits.address}/{number}" for number in range(3)]
    assert ask(*urls, times=times).endpoint == urls[first]


@pytest.mark.parametrize("groups", [{}, {"orders": CheckedGroup()}], ids=["unknown", "without endpoints"])
def test_group_without_endpoints_is_no_answer(groups: dict[str, CheckedGroup]) -> None:
    with CheckClient(groups, SHORT) as client:
        answer = client.ask(request())
    assert (answer.outcome, answer.endpoint, answer.failed_tries) == ("NO_ANSWER", None, ())
    assert answer.error == "producers.orders has no endpoints"


def test_environment_is_not_obeyed(commits: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a proxy nor a CA file of the environment: endpoints and trust come from the settings."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, unused_url())
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")
    assert ask(commits.url).outcome == "COMMIT"


def test_endpoint_that_hangs_is_left_alone() -> None:
    """After so many timeouts in a row an endpoint is not tried any more; the next one still is, and at once."""
    with Server(late) as hangs, Server(always(reply(says("COMMIT")))) as well:
        groups = {"orders": CheckedGroup((hangs.url, well.url))}
        with CheckClient(groups, 0.1, limits=Limits(failures=2)) as client:
            answers = [client.ask(request()) for _ in range(3)]
        assert [answer.failed_tries for answer in answers] == [
            ((hangs.url, "timed out after 0.1 s"),),
            ((hangs.url, "timed out after 0.1 s"),),
            ((hangs.url, "not tried: 2 tries in a row failed"),),
        ]
        assert [answer.outcome for answer in answers] == ["COMMIT"] * 3
        assert len(hangs.received) <= 2


def test_group_whose_endpoint_is_left_alone_leaves_others_with_that_url_theirs(commits: Server) -> None:
    """Groups that share a URL do not share its breaker."""
    known = {("orders", commits.url): CircuitBreaker(failed=9, until=60, changed=1)}
    groups = {"orders": CheckedGroup((commits.url,)), "other": CheckedGroup((commits.url,))}
    with CheckClient(groups, SHORT, clock=lambda: 50.0, breakers=known) as client:
        assert client.ask(request()).error == "not tried: 9 tries in a row failed"
        assert client.ask(request(group="other")).outcome == "COMMIT"


BROKEN = {
    "500": reply(b"", "500 Internal Server Error"),
    "502": reply(b"", "502 Bad Gateway"),
    "429": reply(b"", "429 Too Many Requests"),
    "not HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "hangs up": b"",
}
WELL = {
    "404": reply(b"", "404 Not Found"),
    "redirect": reply(b"", "302 Found", Location="http://127.0.0.1:9/"),
    "UNKNOWN": reply(says("UNKNOWN")),
    "no JSON": reply(b"?"),
    "other id": reply(says("COMMIT", "tx-2")),
}


@pytest.mark.parametrize("response", BROKEN.values(), ids=BROKEN.keys())
def test_endpoint_broken_in_every_way_is_left_alone(response: bytes) -> None:
    with Server(always(response, keep=False)) as server:
        with CheckClient({"orders": CheckedGroup((server.url,))}, 5, limits=Limits(failures=3)) as client:
            errors = [client.ask(request()).error for _ in range(5)]
        assert errors[3:] == ["not tried: 3 tries in a row failed"] * 2
        assert len(server.received) == 3


@pytest.mark.parametrize("response", WELL.values(), ids=WELL.keys())
def test_endpoint_that_answers_wrongly_about_one_transaction_is_not_left_alone(response: bytes) -> None:
    with Server(always(response)) as server:
        with CheckClient({"orders": CheckedGroup((server.url,))}, 5, limits=Limits(failures=2)) as client:
            for _ in range(5):
                client.ask(request())
        assert len(server.received) == 5


def test_endpoint_late_now_and_then_is_not_left_alone() -> None:
    """An answer in between, even a wrong one, starts the count again."""
    count = iter(range(100))

    def handle(received: Received, wire: Wire) -> bool:
        if next(count) % 2:
            return late(received, wire)
        wire.send(reply(b"", "404 Not Found"))
        return True

    with Server(handle) as server:
        groups = {"orders": CheckedGroup((server.url,))}
        with CheckClient(groups, 0.3, limits=Limits(failures=2)) as client:
            errors = [client.ask(request()).error for _ in range(6)]
    assert errors == ["status 404", "timed out after 0.3 s"] * 3


NOON = 1_795_176_000.0  # 2026-11-20 12:00:00 UTC


@pytest.mark.parametrize(
    ("status", "header", "until"),
    [
        ("503 Service Unavailable", "20", "2026-11-20 12:00:20"),
        ("429 Too Many Requests", "20", "2026-11-20 12:00:20"),
        ("503 Service Unavailable", "Fri, 20 Nov 2026 12:01:00 GMT", "2026-11-20 12:01:00"),
        ("503 Service Unavailable", "86400", "2026-11-20 12:05:00"),
        ("503 Service Unavailable", "9" * 5000, "2026-11-20 12:05:00"),
        ("503 Service Unavailable", "Fri, 31 Dec 9999 23:59:59 GMT", "2026-11-20 12:05:00"),
        ("503 Service Unavailable", "Fri, 20 Nov 2026 11:00:00 GMT", "2026-11-20 12:00:01"),
        ("503 Service Unavailable", "0", "2026-11-20 12:00:01"),
        ("503 Service Unavailable", "soon", None),
        ("503 Service Unavailable", "-1", None),
        ("500 Internal Server Error", "20", None),
        ("404 Not Found", "20", None),
    ],
)
def test_retry_after_is_obeyed(status: str, header: str, until: str | None) -> None:
    """Of a 429 or 503, as seconds or as a date, for five minutes at most: nobody tries before; then one does."""
    now = NOON
    with Server(always(reply(b"", status, Retry_After=header))) as server:
        with CheckClient({"orders": CheckedGroup((server.url,))}, 5, clock=lambda: now) as client:
            client.ask(request())
            told = client.ask(request())
            if until is None:
                assert (told.error, len(server.received)) == (f"status {status[:3]}", 2)
                return
            assert (told.error, told.delivered) == (f"not tried: it asked to be left alone until {until}", False)
            now = datetime.fromisoformat(until + "+00:00").timestamp() - 0.1
            client.ask(request())
            assert len(server.received) == 1
            now += 0.1
            assert client.ask(request()).error == f"status {status[:3]}"
        assert len(server.received) == 2


def eight() -> CheckScheduler:
    return CheckScheduler([request(offset=offset) for offset in range(8)])


def test_checks_wait_for_the_trial_and_do_not_go_in_vain(commits: Server) -> None:
    """An endpoint that is well again: while one check tries it, the others wait for what comes of it."""
    known = {("orders", commits.url): CircuitBreaker(failed=9, until=NOON - 1, changed=1)}
    with CheckClient({"orders": CheckedGroup((commits.url,))}, 5, clock=lambda: NOON, breakers=known) as client:
        answers = [answer for _, answer in client.ask_all(eight(), 8)]
    assert [answer.outcome for answer in answers] == ["COMMIT"] * 8
    assert len(commits.received) == 8


def test_trial_that_fails_lets_nobody_else_in(fails: Server) -> None:
    """An endpoint that is still down gets one check, whoever waits for it."""
    known = {("orders", fails.url): CircuitBreaker(failed=9, until=NOON - 1, changed=1)}
    with CheckClient({"orders": CheckedGroup((fails.url,))}, 5, clock=lambda: NOON, breakers=known) as client:
        answers = [answer for _, answer in client.ask_all(eight(), 8)]
    errors = sorted(answer.error or "" for answer in answers)
    assert errors == ["not tried: 10 tries in a row failed"] * 7 + ["status 503"]
    assert len(fails.received) == 1


def test_trial_that_hangs_holds_the_others_for_its_time_only() -> None:
    """They wait for the trial as long as it may take, and are not tried then."""
    with Server(late) as hangs:
        known = {("orders", hangs.url): CircuitBreaker(failed=9, until=NOON - 1, changed=1)}
        limits = Limits(trial_s=0.1)
        with CheckClient(
            {"orders": CheckedGroup((hangs.url,))}, SHORT, clock=lambda: NOON, breakers=known, limits=limits
        ) as client:
            answered = [(answer.error, answer.latency_ms) for _, answer in client.ask_all(eight(), 8)]
        assert [error for error, _ in answered] == ["not tried: 9 tries in a row failed"] * 7 + [
            "timed out after 0.3 s"
        ]
        assert all(latency_ms >= 100 for _, latency_ms in answered)
        assert len(hangs.received) == 1


def test_delivered_is_what_was_written_to_a_connection(commits: Server, fails: Server) -> None:
    """Whatever came back: with an answer, an error, or too late; not without a connection."""
    with Server(late) as hangs, Server(hang_up) as closes:
        assert [ask(server.url).delivered for server in (commits, fails, hangs, closes)] == [True] * 4
        assert ask(unused_url(), hangs.url, unused_url()).delivered
    assert not ask(unused_url(), unused_url()).delivered
    assert not ask("http://no-such-host.invalid/check", timeout_s=5).delivered
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connected, but no TLS, so no request
        assert not ask(f"https://127.0.0.1:{silent.getsockname()[1]}/check").delivered
    assert not ask().delivered


@pytest.mark.parametrize(
    "url",
    ["", "orders", "ftp://host/check", "http://", "http://user:pass-word@host/", "http://h/#a", "http://h:99999/"],
)
def test_endpoint_unfit_is_refused_before_any_request(url: str) -> None:
    """The error names the setting; it does not quote the URL, which may hold a password."""
    with pytest.raises(SettingsError, match=r"^producers\.orders\.endpoints: an endpoint is not a URL") as caught:
        CheckClient({"orders": CheckedGroup((url,))}, SHORT)
    assert "pass-word" not in str(caught.value)


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "not PEM"])
def test_ca_file_unfit_is_refused(content: str | None, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=r"^check\.ca_file: .*(not PEM|No such file)"):
        CheckClient({}, SHORT, str(path))


def test_clock_and_timer_are_the_callers(commits: Server) -> None:
    ticks = iter([9.0, 10.0, 12.5])
    with CheckClient(
        {"orders": CheckedGroup((commits.url,))}, 5, clock=lambda: 86_400.0, timer=lambda: next(ticks)
    ) as client:
        answer = client.ask(request())
    assert (answer.latency_ms, answer.answered_at.isoformat()) == (2500, "1970-01-02T00:00:00+00:00")
