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
    """Writes the package, at the top of the ZIP file: its Python files, py.typed, the commit, LICENSE and conf."""
    sys.path.insert(0, os.fspath(package.parent))
    from checkback.build import FILE, commit

    root = package.parents[1]
    own = [file for file in package.rglob("*") if file.suffix == ".py" or file.name == "py.typed"]
    more = [root / "LICENSE", *(file for file in (root / "conf").rglob("*") if file.is_file())]
    found = {file.relative_to(package): file.read_bytes() for file in own}
    found |= {file.relative_to(root): file.read_bytes() for file in more} | {Path(FILE): commit().encode("ascii")}
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(found):
            entry = zipfile.ZipInfo(f"{package.name}/{name.as_posix()}", _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, found[name])


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
    print(sys.argv[2])
