"""Pyarrow imports pandas, if it is there, to know its types: a tenth of a short command's time, and 40 MiB."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class NoPandas(MetaPathFinder):
    """A finder of modules, for which there is no pandas."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002 - importlib's
        """Raises ModuleNotFoundError for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


@contextmanager
def no_pandas() -> Iterator[None]:
    """Meanwhile pandas cannot be imported. Pyarrow looks for it once, with its first array."""
    finder = NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
