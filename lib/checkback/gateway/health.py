"""The gateway's health, and the problem for waiting requests after a failure."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from checkback.errors import CheckbackError, FencedError
from checkback.gateway.appender import OutcomeUnknownError
from checkback.gateway.problems import Problem
from checkback.storage.log.delta_log import AlteredError, ReplacedError

if TYPE_CHECKING:
    from collections.abc import Callable

#: so long (ms) after a commit that failed it is not ready: whoever waits for that sends nothing that could succeed
_ILL_MS = 5_000
#: so often (ms) it is logged that the tables cannot be read
_LOGGED_MS = 60_000
_BEGAN = time.time_ns() - time.monotonic_ns()
_log = logging.getLogger("checkback.gateway")


def now_ms() -> int:
    """The time, in ms since the epoch."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Monotonic time in ms since the epoch: the process's start plus elapsed time, unaffected by clock changes."""
    return (_BEGAN + time.monotonic_ns()) // 1_000_000


class HealthState:
    """The gateway's health. ``stop`` is called once, with the error that is fatal."""

    def __init__(self, stop: Callable[[CheckbackError], None], clock: Callable[[], int] = steady_ms) -> None:
        """``clock``: monotonic ms."""
        self._stop = stop
        self._clock = clock
        self._ill_until = self._logged_until = 0
        self._ill = self._lost = self._behind = False
        self.stopping = False

    @property
    def ready(self) -> bool:
        """Does it accept messages?"""
        return not self.stopping and self._clock() >= self._ill_until

    def worked(self) -> None:
        """Record a successful commit."""
        if self._ill:
            _log.warning("messages can be stored again")
        self._ill = False
        self._ill_until = 0

    def flushed(self) -> None:
        """Record that the journal was flushed to the tables."""
        if self._behind:
            _log.info("the tables can be written again")
        self._behind = False

    def flush_failed(self, error: Exception) -> bool:
        """Record that the journal was not flushed to the tables; True if the gateway must stop, as in `failed`.

        Otherwise it goes on: the journal keeps what it acknowledges.
        """
        if self._is_fatal(error):
            self.stopping = True
            return True
        if not self._behind:
            _log.warning("the tables cannot be written at present, the journal keeps what is acknowledged: %s", error)
        self._behind = True
        return False

    def failed(self, error: Exception) -> Problem:
        """The problem for requests whose messages were not committed.

        Errors of the disk or the log may be transient. A lost queue, or a commit with unknown outcome, ends the
        gateway: continuing could assign an offset twice. So does a table that can no longer be appended to, or is
        another one.
        """
        if self._is_fatal(error):
            self._end(error)
            return Problem("stopping", "the gateway cannot go on; send it again")
        if not self._ill:
            _log.warning("nothing can be stored at present: %s", error)
        self._ill = True
        self._ill_until = self._clock() + _ILL_MS
        return _UNAVAILABLE

    def unread(self, error: Exception) -> Problem:
        """The problem for requests that need what cannot be read: what does not need it can still be stored."""
        if self._is_fatal(error):
            return self.failed(error)
        now = self._clock()
        if now >= self._logged_until:
            _log.warning("the tables cannot be read at present: %s", error)
            self._logged_until = now + _LOGGED_MS
        return _UNAVAILABLE

    def _is_fatal(self, error: Exception) -> bool:
        fatal = FencedError | OutcomeUnknownError | AlteredError | ReplacedError
        return isinstance(error, fatal) or not isinstance(error, CheckbackError | OSError)

    def _end(self, error: Exception) -> None:
        self.stopping = True
        if not self._lost:
            self._lost = True
            self._stop(
                error if isinstance(error, CheckbackError) else CheckbackError(f"unexpected {type(error).__name__}")
            )


_UNAVAILABLE = Problem("storage_unavailable", "nothing was stored; send it again")
