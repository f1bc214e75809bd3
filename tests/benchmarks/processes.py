"""The settings, the session and the tables of a benchmark."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkback.settings import Settings
from checkback.spark.session import running_session
from checkback.storage.schemas import SCHEMAS
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

MASTER = "local[2]"
GROUP = "bench"


@dataclass(frozen=True)
class Lakehouse:
    """Where a benchmark runs."""

    root: str
    spark: SparkSession
    settings: Settings
    tables: Tables


def settings(root: str, master: str = MASTER, **sections: dict[str, Any]) -> Settings:
    """The defaults, but batches one after the other, and nothing due for a check; ``sections`` win."""
    chosen: dict[str, dict[str, Any]] = {
        "storage": {"root": root},
        "transaction": {"timeout": "10h"},
        "reconcile": {"trigger": "0s"},
        "spark": {"spark.master": master, "spark.driver.memory": "6g"},
    }
    for name, values in sections.items():
        chosen[name] = chosen.get(name, {}) | values
    return Settings.model_validate(chosen)


@contextmanager
def lake(root: str, master: str = MASTER, **sections: dict[str, Any]) -> Iterator[Lakehouse]:
    """A session, and the tables; those that are missing are made."""
    chosen = settings(root, master, **sections)
    with running_session(chosen, "checkback-bench") as spark:
        tables = Tables.of(chosen.storage)
        tables.create(spark, *SCHEMAS)
        yield Lakehouse(root, spark, chosen, tables)
