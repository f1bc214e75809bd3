"""Traces made up at random: half messages and ops of every kind, and what must become of each transaction."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

Key: TypeAlias = tuple[int, int]

_LAST_QUEUE, _LAST_OFFSET = 2**31 - 1, 2**63 - 1
_TOPICS = ("orders", "b_b", "c-c")
_GROUPS = ("ga", "gb")


@dataclass
class Made:
    """Lines of a trace, whole and broken, and the state that each transaction must get; None = nobody says."""

    halves: dict[Key, dict[str, Any]] = field(default_factory=dict)
    ops: list[dict[str, Any]] = field(default_factory=list)
    states: dict[Key, str | None] = field(default_factory=dict)
    not_obeyed: int = 0
    broken: list[str] = field(default_factory=list)

    def write(self, folder: Path, random: Random, files: int = 3) -> None:
        """The lines in any order, over several files of the folders half and op."""
        halves = [json.dumps(half) for half in self.halves.values()] + self.broken
        for name, lines in (("half", halves), ("op", [json.dumps(op) for op in self.ops])):
            random.shuffle(lines)
            (folder / name).mkdir()
            for number in range(files):
                (folder / name / f"{number}.jsonl").write_text("\n".join(lines[number::files]) + "\n", "utf-8")

    def write_parts(self, folder: Path, random: Random, parts: int) -> None:
        """The lines over several parts that land one after the other: all ops of a half message in one of them."""
        place: dict[Any, int] = {}
        lines: dict[tuple[str, int], list[str]] = {(kind, part): [] for kind in ("half", "op") for part in range(parts)}
        for line in [*map(json.dumps, self.halves.values()), *self.broken]:
            lines["half", random.randrange(parts)].append(line)
        for op in self.ops:
            part = place.setdefault((op["queue_id"], op["queue_offset"]), random.randrange(parts))
            lines["op", part].append(json.dumps(op))
        for (kind, part), some in lines.items():
            (folder / kind).mkdir(exist_ok=True)
            (folder / kind / f"{part}.jsonl").write_text("\n".join(some) + "\n", "utf-8")


def made(random: Random, transactions: int, now_ms: int) -> Made:
    """A trace of three queues, among them the last one there can be, with gaps in their offsets."""
    trace = Made()
    for queue in (0, 3, _LAST_QUEUE):
        offset = random.choice([0, 7, 10**12, _LAST_OFFSET - 100 * transactions])
        for _ in range(transactions // 3):
            offset += random.choice([1, 1, 1, 2, 90])
            half = _half(random, queue, offset, now_ms)
            trace.halves[queue, offset] = half
            trace.states[queue, offset] = random.choice(_SCRIPTS)(trace, half)
    some = next(iter(trace.halves.values()))
    trace.broken = [
        "{no json",
        json.dumps({"queue_id": 1}),
        json.dumps(some | {"queue_offset": -1}),
        json.dumps(some | {"queue_offset": 5, "real_topic": "../../etc"}),
        json.dumps(some | {"queue_offset": 6, "body": "***"}),
    ]
    return trace


def _half(random: Random, queue: int, offset: int, now_ms: int) -> dict[str, Any]:
    return {
        "queue_id": queue,
        "queue_offset": offset,
        "transaction_id": f"t-{queue}-{offset}",
        "producer_group": random.choice(_GROUPS),
        "real_topic": random.choice(_TOPICS),
        "real_queue_id": random.randrange(8),
        "tags": random.choice([None, "", "x"]),
        "keys": random.choice([None, "kéy"]),
        "properties": random.choice([{}, {"a": "b", "中": "文"}, {"z": ""}]),
        "body": base64.b64encode(random.randbytes(random.choice([1, 10, 5000]))).decode(),
        "born_timestamp": now_ms - 60_000 - random.randrange(100_000),  # older than any immunity
        "check_immunity": random.choice([None, "0s", "30s"]),
    }


def _op(trace: Made, half: dict[str, Any], state: str, after_ms: int, **wrong: str) -> None:
    own = {name: half[name] for name in ("queue_id", "transaction_id", "producer_group")}
    born = half["born_timestamp"] + after_ms
    trace.ops.append(own | {"queue_offset": half["queue_offset"], "state": state, "born_timestamp": born} | wrong)
    trace.not_obeyed += bool(wrong)


def _committed(trace: Made, half: dict[str, Any]) -> str | None:
    _op(trace, half, "COMMIT", 5)
    return "COMMIT"


def _committed_twice(trace: Made, half: dict[str, Any]) -> str | None:
    _op(trace, half, "COMMIT", 5)
    _op(trace, half, "COMMIT", 5)
    _op(trace, half, "ROLLBACK", 6)
    return "COMMIT"


def _rolled_back(trace: Made, half: dict[str, Any]) -> str | None:
    _op(trace, half, "ROLLBACK", 7)
    _op(trace, half, "COMMIT", 9)
    return "ROLLBACK"


def _tie(trace: Made, half: dict[str, Any]) -> str | None:
    _op(trace, half, "COMMIT", 5)
    _op(trace, half, "ROLLBACK", 5)
    return "ROLLBACK"


def _wrong_group(trace: Made, half: dict[str, Any]) -> str | None:
    _op(trace, half, "COMMIT", 5, producer_group="others")
    return None


def _wrong_then_right(trace: Made, half: dict[str, Any]) -> str | None:
    _op(trace, half, "COMMIT", 5, transaction_id="another")
    _op(trace, half, "ROLLBACK", 6)
    return "ROLLBACK"


def _silent(trace: Made, half: dict[str, Any]) -> str | None:
    return None


_SCRIPTS: tuple[Callable[[Made, dict[str, Any]], str | None], ...] = (
    _committed,
    _committed,
    _committed_twice,
    _rolled_back,
    _tie,
    _wrong_group,
    _wrong_then_right,
    _silent,
)
