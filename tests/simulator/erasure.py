"""`checkback erase` in a simulated world: the real Erasure, on files made of the world's rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from checkback.storage.timestamps import time_of
from simulator.retention import TOPIC, Lake, key_of, name_of

if TYPE_CHECKING:
    from types import ModuleType

    from checkback.maintain.erasure_selection import Selection
    from simulator.tables import Discarded, Half, Published, Tables

#: the tables that hold messages, and `unpublished`, which holds none here
HOLD = (TOPIC, "discarded", "rejected", "half")


class Wanted(NamedTuple):
    """Which messages: those of a transaction, or those with a ``key``; of a producer group, or of any."""

    transaction: int | None
    key: str | None
    group: int | None

    def selects(self, row: Half | Published | Discarded) -> bool:
        """Is it one of them?"""
        named = key_of(row) == self.key if self.transaction is None else row.transaction == self.transaction
        return named and self.group in (None, row.group)

    def selection(self, kind: type[Selection]) -> Selection:
        """The same for the command."""
        transaction = None if self.transaction is None else name_of(self.transaction)
        return kind.of(self.key, transaction, None if self.group is None else str(self.group), None)


def erase(
    tables: Tables, wanted: Wanted, now: int, size: int, crash: int | None, rules: ModuleType
) -> list[dict[str, Any]]:
    """Erase from files of ``size`` rows. What is owed yet: then nothing is erased.

    Raises CrashError before commit number ``crash``. ``rules``: a test gives a broken `maintain.erasure`.
    """
    lake: Any = Lake(tables, size, crash)
    parts = {"rows_of": lake.rows_of, "write_rows": lake.write_rows, "names": lambda _: [*HOLD, "unpublished"]}
    with patch.multiple(rules, **parts, DeltaLog=SimpleNamespace(exists=lambda _: True)):
        erasure = rules.Erasure(lake, wanted.selection(rules.keyed.__globals__["Selection"]))
        found = erasure.find()
        if found.owed:
            return list(found.owed)
        erasure.erase(found, time_of(now))
    return []
