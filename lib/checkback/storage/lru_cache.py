"""A bounded LRU cache by name."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


class LruCache(Generic[_T]):
    """Values by name: the ``most`` recently used ones, and those that are always ``kept``. Thread-safe.

    A pickled copy is empty.
    """

    def __init__(self, most: int, kept: Callable[[str], bool] | None = None) -> None:
        """``kept``: tells by name which values are not counted and never evicted. Must be picklable."""
        self._most = most
        self._kept = kept
        self._always: dict[str, _T] = {}
        self._values: OrderedDict[str, _T] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return LruCache, (self._most, self._kept)

    def __contains__(self, name: str) -> bool:
        with self._lock:
            return name in self._values or name in self._always

    def __len__(self) -> int:
        with self._lock:
            return len(self._values) + len(self._always)

    def get(self, name: str, make: Callable[[], _T]) -> _T:
        """The cached value, or else that of ``make``, called in this thread. Raises what ``make`` raises."""
        with self._lock:
            if name in self._always:
                return self._always[name]
            if name in self._values:
                self._values.move_to_end(name)
                return self._values[name]
        value = make()  # outside the lock: it takes milliseconds
        with self._lock:
            if self._kept is not None and self._kept(name):
                return self._always.setdefault(name, value)
            value = self._values.setdefault(name, value)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value

    def forget(self, name: str) -> None:
        """Evict a value, if present."""
        with self._lock:
            self._values.pop(name, None)
            self._always.pop(name, None)
