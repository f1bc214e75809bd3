"""Table features as Spark leaves them, without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from deltalake import DeltaTable

if TYPE_CHECKING:
    from pathlib import Path


def with_checkpoint_protection(table: Path) -> None:
    """Commit the protocol that a table has after ALTER TABLE ... DROP FEATURE deletionVectors."""
    with_features(table, "appendOnly", "invariants", "checkpointProtection")


def with_features(table: Path, *features: str) -> None:
    """Commit a protocol with these features for writers."""
    about = {"timestamp": 0, "operation": "DROP FEATURE", "operationParameters": {}}
    actions = [
        {"commitInfo": about},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}},
    ]
    commit = table / "_delta_log" / f"{DeltaTable(table).version() + 1:020}.json"
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
