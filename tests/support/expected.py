"""What must become of a trace, worked out in plain Python from its files by the protocol's rules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from examples.producer import read_script, said

if TYPE_CHECKING:
    from pathlib import Path


def lines(file: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def decisions(folder: Path, check_max: int, gone: frozenset[str] = frozenset()) -> dict[int, tuple[str, str | None]]:
    """queue_offset -> (state, reason), when all ops land before the first batch and two endpoints answer in turn.

    ``gone``: groups whose producer never answers.
    """
    script = read_script(folder / "check_answers.json")
    ops: dict[int, list[dict[str, Any]]] = {}
    for op in lines(folder / "op.jsonl"):
        ops.setdefault(op["half_offset"], []).append(op)
    found: dict[int, tuple[str, str | None]] = {}
    for half in lines(folder / "half.jsonl"):
        offset, name = half["queue_offset"], half["transaction_id"]
        own = [
            op
            for op in ops.get(offset, [])
            if (op["producer_group"], op["transaction_id"]) == (half["producer_group"], name)
        ]
        own.sort(key=lambda op: (op["born_timestamp"], op["state"] == "COMMIT"))
        if own:
            found[offset] = (own[0]["state"], None)
            continue
        answers = (
            []
            if half["producer_group"] in gone
            else [said(script[name], n, "AB"[(n - 1) % 2]) for n in range(1, check_max + 1)]
        )
        deciding = [answer for answer in answers if answer in ("COMMIT", "ROLLBACK")]
        found[offset] = (deciding[0], None) if deciding else ("DISCARD", "CHECK_MAX")
    return found
