"""A batch that breaks off between its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from checkback.application.queries import reconcile
from checkback.errors import CheckbackError
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.settings import Settings


def reconcile_without_decisions(spark: SparkSession, settings: Settings) -> None:
    """Reconcile what is there: it fails where it commits to `decisions`, after some of the topics were written."""
    commit = Tables.commit

    def fail(self: Tables, spark: SparkSession, name: str, *args: Any) -> None:
        if name == "decisions":
            raise OSError("no space left on device")
        commit(self, spark, name, *args)

    with patch.object(Tables, "commit", fail), pytest.raises(CheckbackError, match="no space left"):
        reconcile(spark, settings, available_now=True)
