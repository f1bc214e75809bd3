"""What was used last, by name: a cache that does not grow with the names that there are."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


class Recent(Generic[_T]):
    """Values by name: the ``most`` that were used last, and those that are ``kept`` always. For several threads.

    A copy in another process begins empty.
    """

    def __init__(self, most: int, kept: Callable[[str], bool] | None = None) -> None:
        """``kept``: by the name, values that are not counted and never dropped. It must be a function that pickles."""
        self._most = most
        self._kept = kept
        self._always: dict[str, _T] = {}
        self._values: OrderedDict[str, _T] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return Recent, (self._most, self._kept)

    def __contains__(self, name: str) -> bool:
        with self._lock:
            return name in self._values or name in self._always

    def __len__(self) -> int:
        with self._lock:
            return len(self._values) + len(self._always)

    def get(self, name: str, make: Callable[[], _T]) -> _T:
        """The value of a name; made where it is not there, by whoever asks. Raises what ``make`` raises."""
        with self._lock:
            if name in self._always:
                return self._always[name]
            if name in self._values:
                self._values.move_to_end(name)
                return self._values[name]
        value = make()  # not under the lock: it takes milliseconds, and others wait
        with self._lock:
            if self._kept is not None and self._kept(name):
                return self._always.setdefault(name, value)
            value = self._values.setdefault(name, value)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value

    def forget(self, name: str) -> None:
        """Drop a value, if it is there."""
        with self._lock:
            self._values.pop(name, None)
            self._always.pop(name, None)
