"""Whether the gateway works, and what follows for those that wait when it does not."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from checkback.errors import CheckbackError, FencedError
from checkback.gateway.problems import Problem
from checkback.gateway.tables import OutcomeUnknownError
from checkback.storage.delta_log import AlteredError

if TYPE_CHECKING:
    from collections.abc import Callable

_BEGAN = time.time_ns() - time.monotonic_ns()
_log = logging.getLogger("checkback.gateway")


def now_ms() -> int:
    """The time, in ms since the epoch."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """The time of the process's start and what has passed since, in ms: setting the clock does not move it."""
    return (_BEGAN + time.monotonic_ns()) // 1_000_000


class HealthState:
    """How the gateway is. ``stop`` is called once, with the error that it cannot go on after."""

    def __init__(self, stop: Callable[[CheckbackError], None]) -> None:
        self._stop = stop
        self._ill = self._lost = False
        self.stopping = False

    @property
    def ready(self) -> bool:
        """Does it take messages?"""
        return not self.stopping and not self._ill

    def worked(self) -> None:
        """A commit was made."""
        self._ill = False

    def failed(self, error: Exception) -> Problem:
        """What those are told whose messages were not committed.

        What the disk or the log refuses may work the next time. A lost queue, or a commit of which nobody knows
        whether it was made, ends the gateway: to go on could give an offset twice. So does a table that takes no files
        any more.
        """
        if isinstance(error, FencedError | OutcomeUnknownError | AlteredError) or not isinstance(
            error, CheckbackError | OSError
        ):
            self.stopping = True
            if not self._lost:
                self._lost = True
                own = isinstance(error, CheckbackError)
                self._stop(error if own else CheckbackError(f"unexpected {type(error).__name__}"))  # type: ignore[arg-type]
            return Problem("stopping", "the gateway cannot go on; send it again")
        if not self._ill:
            _log.warning("nothing can be stored for now: %s", error)
        self._ill = True
        return Problem("storage_unavailable", "nothing was stored; send it again")
