"""A PostgreSQL server on loopback for one run, by the programs that the machine has."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkback.errors import CheckbackError, SettingsError
from examples.bank.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def postgres(*settings: str) -> Iterator[str]:
    """Its URL. ``settings``: as `wal_level=logical`. Raises SettingsError if it is not installed."""
    initdb, server = _program("initdb"), _program("postgres")
    account = _account()
    folder = Path(tempfile.mkdtemp(prefix="checkback-postgres-"))
    try:
        if account:
            os.chown(folder, account["user"], account["group"])
        port, data = free_port(), str(folder / "data")
        options: dict[str, Any] = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **account}
        subprocess.run(  # noqa: S603 - PostgreSQL's own
            [initdb, "-D", data, "-A", "trust", "-U", "shop", "--no-sync"], **options, check=True
        )
        command = [server, "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-F"]
        command += [part for each in ("log_min_messages=log", *settings) for part in ("-c", each)]
        with subprocess.Popen(command, **options) as running:  # noqa: S603
            try:
                if not any(b"ready to accept connections" in line for line in running.stdout or ()):
                    raise CheckbackError("PostgreSQL has ended when it was started", data)
                yield f"postgresql://shop@127.0.0.1:{port}/postgres"
            finally:
                running.send_signal(signal.SIGINT)  # without waiting for clients
                running.communicate(timeout=30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str:
    """A program of PostgreSQL: on the path, or where Debian keeps it."""
    found = shutil.which(name) or next(iter(sorted(glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None)
    if found is None:
        raise SettingsError(f"PostgreSQL's {name} is missing", fix="apt-get install postgresql")
    return found


def _account() -> dict[str, Any]:
    """Whose process it is: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    raise SettingsError("PostgreSQL does not run as root", fix="add a user postgres")
