"""Lines with half messages and ops, landed as a batch of `land` lands them, but without Spark."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkback.messages.fields import MessageRejectedError
from checkback.messages.half import parse_half
from checkback.messages.op import parse_ops
from support.query_times import append

if TYPE_CHECKING:
    from os import PathLike

_EPOCH = datetime.fromtimestamp(0, timezone.utc)


def land_lines(root: str | PathLike[str], half: Path | None = None, op: Path | None = None) -> None:
    """Append the lines of a file to `half`, those of another to `op`, a commit each. Broken ones are left out.

    For tests of what becomes of them; no half message may come twice. That `land` lands them so is tested in
    tests/landing.
    """
    landed = {"source": "producer", "store_timestamp": datetime.fromtimestamp(time.time(), timezone.utc)}
    for name, file, parse in (("half", half, lambda line: [parse_half(line)]), ("op", op, parse_ops)):
        rows: list[dict[str, Any]] = []
        for line in [] if file is None else file.read_bytes().splitlines():
            with suppress(MessageRejectedError):
                rows += [message._asdict() for message in parse(line)]
        if rows:
            append(Path(root), name, [row | landed | {"born_timestamp": _time(row["born_timestamp"])} for row in rows])


def _time(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)
