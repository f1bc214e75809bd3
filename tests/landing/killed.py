"""`checkback land --table` that kills itself, its JVM and its workers around a commit: see test_table_killed."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from checkback.cli import main
from checkback.storage.tables import Tables


def killing(when: str, table: str) -> None:
    """From now on `Tables.append` to the table ends all processes of this group, before or after it commits."""
    append = Tables.append

    def appending(*given: Any) -> bool:
        if given[2] == table and when == "before":
            os.killpg(0, signal.SIGKILL)
        done = append(*given)
        if given[2] == table and when == "after":
            os.killpg(0, signal.SIGKILL)
        return done

    Tables.append = appending  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    when, table, *arguments = sys.argv[1:]
    killing(when, table)
    sys.exit(main(arguments))
