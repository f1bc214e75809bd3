"""Packs a Python package for spark-submit --py-files: the same files give the same bytes.

Usage: zip.py PACKAGE_FOLDER ZIP_FILE
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

# The oldest time a ZIP file can hold.
_TIME = (1980, 1, 1, 0, 0, 0)


def pack(package: Path, target: Path) -> None:
    """Writes the package, at the top of the ZIP file, with its Python files, py.typed, and the commit's file."""
    sys.path.insert(0, os.fspath(package.parent))
    from checkback.build import FILE, commit

    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w") as archive:
        for file in sorted(package.rglob("*")):
            if file.suffix == ".py" or file.name == "py.typed":
                entry = zipfile.ZipInfo(file.relative_to(package.parent).as_posix(), _TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, file.read_bytes())
        entry = zipfile.ZipInfo(f"{package.name}/{FILE}", _TIME)
        entry.external_attr = 0o644 << 16
        archive.writestr(entry, commit())


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
    print(sys.argv[2])
