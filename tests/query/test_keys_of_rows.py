"""The tables for people show the keys of the messages, which no question about all of them reads."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

from checkback.cli import main
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support.stories import DECIDED, Transaction, write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_keys_are_shown_of_the_rows_that_are_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    later, unpublished, gone = Transaction(1), Transaction(2), Transaction(3)
    rows = [Transaction(0, offset).half(keys=f"invoice-{offset}") for offset in range(51)]
    rows += [later.half(keys="later"), later.decision(deliver_at=DECIDED + timedelta(days=36500))]
    rows += [unpublished.half(keys="unpublished"), unpublished.decision(), unpublished.unpublished()]
    rows += [gone.half(keys="gone"), gone.decision("DISCARD"), gone.discarded()]
    write(None, Tables.of(Settings.model_validate({"storage": {"root": str(tmp_path)}}).storage), rows)

    def lines(*words: str) -> list[str]:
        assert main(["tx", "list", "--state", *words, "--set", f"storage.root={tmp_path}"]) == 0
        return capfd.readouterr().out.splitlines()

    header, *pending, more = lines("pending")
    assert header.split()[:6] == ["queue", "offset", "transaction", "group", "topic", "keys"]
    assert [row.split()[5] for row in pending] == [f"invoice-{offset}" for offset in range(50)]
    assert more == "and 1 more; -o json shows all"
    for command, key in (("scheduled", "later"), ("unpublished", "unpublished"), ("discarded", "gone")):
        assert lines(command)[-1].split()[5] == key
    assert "keys" not in json.loads(lines("discarded", "-o", "json")[0])
