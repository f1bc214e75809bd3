"""Tables and a checkpoint in another folder than where they were written, as if they had been written there."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def copied(root: Path, to: Path) -> Path:
    """A copy of the folder ``root``, which nobody writes meanwhile; returns ``to``."""
    shutil.copytree(root, to)
    settle(to, str(root))
    return to


def settle(root: Path, written: str) -> None:
    """Let the checkpoint in ``root`` say so where it names the folder ``written``: the place of its state's schema."""
    for metadata in (root / "_checkpoints/reconcile/state").glob("*/_metadata/v2/[0-9]*"):
        content = metadata.read_text()
        assert f"file:{written}/" in content
        metadata.write_text(content.replace(f"file:{written}/", f"file:{root}/"))
        metadata.with_name(f".{metadata.name}.crc").unlink(missing_ok=True)
