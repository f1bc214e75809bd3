"""Names of the JVM that are looked up once: py4j asks the JVM about each part of ``org.apache.spark``, each time."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def jvm_of(spark: SparkSession) -> Any:
    """The session's JVM, to be used like ``spark._jvm``."""
    return _of(spark._jvm)


@cache
def _of(jvm: Any) -> _Names:
    return _Names(jvm)


class _Names:
    """A package or a class, and what is in it."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        from py4j.java_gateway import JavaClass, JavaPackage

        found = getattr(self._found, name)
        known = _Names(found) if isinstance(found, (JavaClass, JavaPackage)) else found
        setattr(self, name, known)
        return known

    def __call__(self, *given: Any) -> Any:
        return self._found(*given)
