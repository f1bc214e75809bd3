"""How long a Spark Connect client repeats a call that is not answered. Imports gRPC, which only clients have."""

from __future__ import annotations

from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicyState

#: in place of PySpark's ten minutes some half a minute: three pauses of 1 s together, the others of 2 s or more
_TRIES, _PAUSE_MS = 16, 2000


class ConnectRetryPolicy(DefaultPolicy):
    """Once the retries of a call have failed, no other call of the session is retried, not even `stop`."""

    def __init__(self) -> None:
        super().__init__(max_retries=_TRIES, max_backoff=_PAUSE_MS)
        self.over = False

    def can_retry(self, e: BaseException) -> bool:
        """True if the call may be repeated after this error."""
        return not self.over and super().can_retry(e)

    def to_state(self) -> RetryPolicyState:
        """Count the repetitions of a call."""
        return _Tries(self)


class _Tries(RetryPolicyState):
    def __init__(self, patience: ConnectRetryPolicy) -> None:
        super().__init__(patience)
        self._patience = patience

    def next_attempt(self, exception: BaseException | None = None) -> int | None:
        """The pause in ms. Raises ``exception`` after the last one: PySpark would warn on stderr first."""
        pause = super().next_attempt(exception)
        if pause is None and exception is not None:
            self._patience.over = True
            raise exception
        return pause
