"""A volume with the keys of a Secret of Kubernetes, written as a kubelet does."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


def as_kubelet(file: Path, text: str) -> None:
    """Write a key of a Secret: a link to a file in a folder, whose place another takes at once (its `AtomicWriter`)."""
    volume = file.parent
    new = Path(tempfile.mkdtemp(prefix="..2026_12_01_", dir=volume))
    (new / file.name).write_text(text)
    before = (volume / "..data").resolve()
    (volume / "..data_tmp").symlink_to(new.name)
    (volume / "..data_tmp").replace(volume / "..data")
    if file.is_symlink():
        shutil.rmtree(before)
    else:
        file.symlink_to(f"..data/{file.name}")
