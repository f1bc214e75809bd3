"""`make screenshots`: the dashboard on the demonstration's tables in headless Chromium, into docs/pictures."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile

from docs.pages import FOLDER

_ROOT = os.environ.get("ROOT", "data/bank/data")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_PICTURES = {
    "dashboard.png": ("/?as_of={then}", "1200,1000"),
    "dashboard-transaction.png": (f"/transactions/{os.environ.get('PLACE', '0/7')}", "1200,900"),
}


def main() -> None:
    """Start the dashboard on ROOT, take the pictures, end it."""
    browser = shutil.which("chromium")
    if browser is None:
        sys.exit("chromium is not installed: apt-get install chromium")
    command = [sys.executable, "-m", "checkback", "dashboard", "--port", "0", "--set", f"storage.root={_ROOT}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            if found is None:
                sys.exit("the dashboard has not started")
            for name, (path, size) in _PICTURES.items():
                place = found[0] + path.format(then=os.environ.get("AS_OF", ""))
                with tempfile.TemporaryDirectory() as profile:
                    target = os.path.abspath(FOLDER / "pictures" / name)
                    options = [f"--user-data-dir={profile}", f"--window-size={size}", f"--screenshot={target}"]
                    subprocess.run([browser, *_FLAGS, *options, place], check=True, capture_output=True, timeout=120)
                print(f"docs/pictures/{name}")
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
