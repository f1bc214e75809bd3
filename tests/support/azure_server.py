"""An Azure Blob Storage server for tests: Azurite, a program for Node.js that npm fetches once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import subprocess
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import requests

from support.npm import node_modules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTAINER = "lake"
ACCOUNT = "devstoreaccount1"
ROOT = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net"
#: Azurite's documented account key, the same for everybody
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_AZURITE = "azurite@3.37.0"
_API = "2021-08-06"
_PORT = re.compile(r"listens on http://127\.0\.0\.1:(\d+)")


def find_azurite(folder: Path) -> Path:
    """The program, fetched into the folder if it is not there. Raises NotFetchedError."""
    return node_modules(folder, _AZURITE) / "azurite" / "dist" / "src" / "blob" / "main.js"


@contextmanager
def serving(program: Path) -> Iterator[int]:
    """A running server with the container `CONTAINER`, as a process of its own; its port."""
    command = ["node", str(program), "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = next(match for match in map(_PORT.search, process.stdout) if match)
            port = int(found[1])
            _create_container(port)
            yield port
        finally:
            process.kill()


def options(port: int) -> dict[str, str]:
    """storage.options for the server."""
    return {
        "azure_storage_account_name": ACCOUNT,
        "azure_storage_account_key": _KEY,
        "azure_storage_endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}",
        "azure_allow_http": "true",
    }


def _create_container(port: int) -> None:
    """Put the container, signed by the account's key (Azure's "Authorize with Shared Key")."""
    headers = {
        "x-ms-date": datetime.now(timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "x-ms-version": _API,
    }
    signed = [f"{name}:{value}" for name, value in headers.items()]
    resource = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    text = "\n".join(["PUT", *[""] * 11, *signed, resource])
    digest = hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"http://127.0.0.1:{port}/{ACCOUNT}/{CONTAINER}?restype=container"
    requests.put(url, headers=headers, timeout=60).raise_for_status()
