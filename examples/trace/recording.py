"""The bundled trace of a real broker, shifted in time as if it had just happened."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

#: location of the trace in a checkout
BUNDLED = Path(__file__).parents[2] / "tests" / "data" / "rocketmq-trace"


@dataclass(frozen=True)
class Trace:
    """Files of a trace in a folder: half.jsonl, op.jsonl, check_answers.json."""

    folder: Path

    @property
    def half(self) -> Path:
        """Half messages, one JSON object a line."""
        return self.folder / "half.jsonl"

    @property
    def op(self) -> Path:
        """Ops, one JSON object a line."""
        return self.folder / "op.jsonl"

    @property
    def answers(self) -> Path:
        """The producers' answers to each check, by transaction id."""
        return self.folder / "check_answers.json"

    def groups(self) -> list[str]:
        """The producer groups of its half messages."""
        return sorted({line["producer_group"] for line in _lines(self.half)})

    def labels(self) -> dict[str, str]:
        """Transaction id -> the name of its script, for display."""
        return {line["transaction_id"]: line.get("keys") or "" for line in _lines(self.half)}

    def moved_to(self, now_ms: int, folder: Path) -> Trace:
        """A copy whose last half message is born now: its checks then become due one by one, as in the original."""
        shift = now_ms - max(line["born_timestamp"] for line in _lines(self.half))
        folder.mkdir(parents=True, exist_ok=True)
        moved = Trace(folder)
        for source, target in ((self.half, moved.half), (self.op, moved.op)):
            with target.open("w", encoding="utf-8") as out:
                for line in _lines(source):
                    out.write(json.dumps(line | {"born_timestamp": line["born_timestamp"] + shift}) + "\n")
        moved.answers.write_bytes(self.answers.read_bytes())
        return moved


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
