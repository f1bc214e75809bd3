"""A class whose public methods run one at a time: of two queries in one process both use the log of a table."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_C = TypeVar("_C", bound=type)


def synchronized(cls: _C) -> _C:
    """Each public method holds ``self._lock``, an RLock. Properties, static and class methods do not."""
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, _locked(method))
    return cls


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked
