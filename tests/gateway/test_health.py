"""When a gateway says that it is ready: producers that have several leave one alone until then."""

from __future__ import annotations

import pytest

from checkback.errors import StorageError
from checkback.gateway.health import HealthState
from checkback.storage.log.delta_log import AlteredError

_ERROR = StorageError("no answer", "half")


class Clock:
    """A clock that is set by hand (ms)."""

    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def health(clock: Clock) -> HealthState:
    return HealthState(lambda error: pytest.fail(str(error)), clock)


def test_a_commit_that_failed_makes_it_unready_for_a_while_only() -> None:
    """Nobody sends to it meanwhile: no commit would show that the tables can be written again."""
    clock = Clock()
    state = health(clock)
    ready = []
    for waits_ms in (4_999, 4_999, 5_000):
        assert state.failed(_ERROR).code == "storage_unavailable"
        clock.now += waits_ms
        ready.append(state.ready)
    assert ready == [False, False, True]
    state.failed(_ERROR)
    state.worked()
    assert state.ready


def test_what_cannot_be_read_does_not_keep_others_from_storing(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    state = health(clock)
    for _ in range(3):
        assert (state.unread(_ERROR).code, state.ready) == ("storage_unavailable", True)
    assert caplog.text.count("cannot be read") == 1
    clock.now += 60_000
    state.unread(_ERROR)
    assert caplog.text.count("cannot be read") == 2


def test_a_table_that_was_altered_ends_it_wherever_that_is_found() -> None:
    stopped: list[Exception] = []
    state = HealthState(stopped.append)
    error = AlteredError("altered", "half")
    assert (state.unread(error).code, state.ready, stopped) == ("stopping", False, [error])
